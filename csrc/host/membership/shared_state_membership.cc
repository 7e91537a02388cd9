#include "host/membership/shared_state_membership.h"

#include <chrono>
#include <utility>
#include <variant>

#include "elastic/agent.h"

namespace elastic::host {
namespace {

// A backend that returns from its calls lets its own thread report first.
constexpr Duration kAnswerMargin = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<Membership>> SharedStateMembership::open(os::EventLoop* loop,
                                                                const RendezvousOptions& options,
                                                                Sink sink) {
  std::unique_ptr<SharedStateMembership> self(
      new SharedStateMembership(loop, options, std::move(sink)));
  auto thread = BackendThread::start(
      options, {.event =
                    [loop, sink_ptr = self->sink_](MembershipEvent event) {
                      loop->post([sink_ptr, event = std::move(event)] {
                        if (*sink_ptr) (*sink_ptr)(event);
                      });
                    },
                .flushed =
                    [loop, settled = self->on_flushed_] {
                      loop->post([settled] {
                        if (*settled) (*settled)();
                      });
                    },
                .call =
                    [loop, on_call = self->on_call_](std::optional<Duration> allowed) {
                      loop->post([on_call, allowed] {
                        if (*on_call) (*on_call)(allowed);
                      });
                    }});
  if (!thread.ok()) return thread.status();
  self->thread_ = *std::move(thread);
  self->await_answer();
  return std::unique_ptr<Membership>(std::move(self));
}

SharedStateMembership::SharedStateMembership(os::EventLoop* loop, const RendezvousOptions& options,
                                             Sink sink)
    : loop_(loop),
      join_timeout_(options.settings.join_timeout),
      store_grace_(options.settings.store_grace),
      store_name_(options.backend->name()),
      user_sink_(std::move(sink)),
      sink_(std::make_shared<Sink>([this](const MembershipEvent& event) { deliver(event); })),
      on_flushed_(std::make_shared<std::function<void()>>([this] { finish_drain(); })),
      on_call_(std::make_shared<std::function<void(std::optional<Duration>)>>(
          [this](std::optional<Duration> allowed) { watch_call(allowed); })),
      drain_timer_(loop, [this] { finish_drain(); }),
      answer_timer_(loop, [this] { give_up(kExitJoinTimedOut, "the join timeout"); }),
      call_timer_(loop, [this] { give_up(kExitCoordinatorLost, "store_grace"); }) {}

SharedStateMembership::~SharedStateMembership() {
  *sink_ = nullptr;
  *on_flushed_ = nullptr;
  *on_call_ = nullptr;
}

void SharedStateMembership::send(const NodeStatement& statement) {
  if (std::holds_alternative<rdzv::Join>(statement)) await_answer();
  thread_->send(statement);
}

void SharedStateMembership::deliver(const MembershipEvent& event) {
  // A progress message does not answer a join: it may be about the outage.
  if (!std::holds_alternative<MembershipProgress>(event)) answer_timer_.disarm();
  if (std::holds_alternative<MembershipReady>(event)) is_ready_ = true;
  user_sink_(event);
}

void SharedStateMembership::await_answer() {
  answer_timer_.arm(add_saturating(add_saturating(loop_->now(), join_timeout_), kAnswerMargin));
}

// Before the first answer the join timeout decides.
void SharedStateMembership::watch_call(std::optional<Duration> allowed) {
  call_timer_.disarm();
  if (!allowed || !is_ready_) return;
  const Instant due = add_saturating(add_saturating(loop_->now(), *allowed), store_grace_);
  call_timer_.arm(add_saturating(due, kAnswerMargin));
}

void SharedStateMembership::give_up(int exit_code, const std::string& limit) {
  *sink_ = nullptr;
  *on_call_ = nullptr;
  answer_timer_.disarm();
  call_timer_.disarm();
  user_sink_(MembershipLost{
      exit_code,
      store_name_ + " rendezvous: a call of the backend has not returned within " + limit});
}

void SharedStateMembership::drain(Duration limit, std::function<void()> done) {
  on_drained_ = std::move(done);
  drain_timer_.arm(add_saturating(loop_->now(), limit));
  thread_->flush();
}

void SharedStateMembership::finish_drain() {
  drain_timer_.disarm();
  if (const auto done = std::exchange(on_drained_, nullptr)) done();
}

}  // namespace elastic::host
