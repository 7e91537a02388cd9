#include "support/loop_group.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "os/loop/event_loop.h"
#include "support/eventually.h"

namespace elastic::support {
namespace {

// A loop that has something to do in each of so many turns never becomes idle.
constexpr int kTurnsMax = 1'000'000;
// What one turn sends is delivered before the next one. Twice: the thread may change the processor.
constexpr int kIdleTurns = 2;

thread_local LoopGroup* t_current = nullptr;

}  // namespace

LoopGroup::LoopGroup()
    : now_(os::monotonic_now()), marker_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  ELASTIC_CHECK(std::exchange(t_current, this) == nullptr);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  ELASTIC_CHECK(::bind(marker_.get(), raw, size) == 0);
  ELASTIC_CHECK(::getsockname(marker_.get(), raw, &size) == 0);
  ELASTIC_CHECK(::connect(marker_.get(), raw, size) == 0);
}

LoopGroup::~LoopGroup() {
  ELASTIC_CHECK(members_.empty());
  t_current = nullptr;
}

LoopGroup* LoopGroup::current() { return t_current; }

bool LoopGroup::adopt(os::EventLoop* loop) {
  members_.push_back({loop});
  return true;
}

void LoopGroup::release(os::EventLoop* loop) {
  std::erase_if(members_, [loop](const Member& one) { return one.loop == loop; });
}

void LoopGroup::set_paused(os::EventLoop* loop, bool is_paused) {
  for (Member& member : members_) {
    if (member.loop == loop) member.is_paused = is_paused;
  }
}

bool LoopGroup::turn_all() {
  bool has_acted = false;
  // A loop may begin or end in the turn of another one. If one is left out for that, the next
  // round, which follows because the turn has acted, includes it.
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].is_paused) has_acted |= members_[i].loop->turn();
  }
  return has_acted;
}

// The kernel delivers loopback packets later than send() returns if the machine is busy, but in
// their order: what was sent before the marker has arrived when the marker has.
void LoopGroup::deliver() {
  char marker = 0;
  ELASTIC_CHECK(::send(marker_.get(), &marker, 1, 0) == 1);
  ELASTIC_CHECK(::recv(marker_.get(), &marker, 1, 0) == 1);
}

void LoopGroup::settle() {
  int turns = 0;
  for (int idle = 0; idle < kIdleTurns; ++turns) {
    ASSERT_LT(turns, kTurnsMax) << "a loop never becomes idle";
    idle = turn_all() ? 0 : idle + 1;
    deliver();
  }
}

Instant LoopGroup::next_deadline() const {
  Instant next = Instant::max();
  for (const Member& member : members_) {
    if (!member.is_paused) next = std::min(next, member.loop->next_deadline());
  }
  return next;
}

// To the next deadline. False: it is after `end`, which is now.
bool LoopGroup::step(Instant end) {
  const Instant next = next_deadline();
  now_ = std::max(now_, std::min(next, end));
  settle();
  return next <= end;
}

void LoopGroup::advance(Duration time) {
  const Instant end = now_ + time;
  settle();
  while (step(end)) {
  }
}

bool LoopGroup::run_until(const Condition& condition, Duration limit) {
  const Instant end = now_ + limit;
  settle();
  while (!condition()) {
    if (!step(end)) return condition();
  }
  return true;
}

bool LoopGroup::await(const Condition& condition) {
  return eventually([&] {
    settle();
    return condition();
  });
}

}  // namespace elastic::support
