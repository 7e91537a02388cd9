#include "os/net/name_lookup.h"

#include <sys/epoll.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "os/loop/notifier.h"
#include "os/loop/quiet_thread.h"

namespace elastic::os {
namespace {

// For one name. If no name server answers, a request keeps its thread for ten seconds or more, and
// callers ask again each second.
constexpr int kThreadsMax = 32;

// The threads that resolve each name. A global, because they outlive the lookups.
class Threads {
 public:
  bool begin(const std::string& host) {
    const std::lock_guard lock(mutex_);
    int& count = counts_[host];
    if (count == kThreadsMax) return false;
    ++count;
    return true;
  }
  void end(const std::string& host) {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(host);
    if (--found->second == 0) counts_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;  // guarded by mutex_
};

// Never destroyed: a thread may end while the program exits.
Threads& threads() {
  static Threads& all = *new Threads;
  return all;
}

}  // namespace

struct NameLookup::Shared {
  Notifier ready;
  std::optional<Result<std::vector<SocketAddress>>> result;  // written before, read after `ready`
};

NameLookup::NameLookup(std::shared_ptr<Shared> shared, Done done)
    : shared_(std::move(shared)), done_(std::move(done)) {}

NameLookup::~NameLookup() = default;

Result<std::unique_ptr<NameLookup>> NameLookup::start(EventLoop* loop, const std::string& host,
                                                      std::uint16_t port, Done done) {
  auto ready = Notifier::create();
  if (!ready.ok()) return ready.status();
  auto shared = std::make_shared<Shared>(Shared{*std::move(ready), std::nullopt});
  std::unique_ptr<NameLookup> lookup(new NameLookup(shared, std::move(done)));
  auto watch = loop->watch(shared->ready.fd(), EPOLLIN, lookup.get());
  if (!watch.ok()) return watch.status();
  lookup->watch_ = *std::move(watch);
  // A literal needs no resolver.
  if (parse_address(host) || loop->is_turned()) {
    shared->result = look_up(host, port);
    shared->ready.notify();
    return lookup;
  }
  const std::string context = "cannot resolve " + host;
  if (!threads().begin(host)) {
    return Status(StatusCode::kUnavailable, context + ": the resolver has not answered " +
                                                std::to_string(kThreadsMax) + " earlier requests");
  }
  auto thread = start_quiet_thread("elastic-resolve", [shared, host, port] {
    shared->result = look_up(host, port);
    threads().end(host);
    shared->ready.notify();
  });
  if (!thread.ok()) {
    threads().end(host);
    return thread.status().with_context(context);
  }
  thread->detach();
  return lookup;
}

void NameLookup::on_ready(std::uint32_t) {
  watch_.reset();
  [[maybe_unused]] const Status ready = shared_->ready.wait({});  // does not block: resets it
  const auto shared = shared_;
  const Done done = std::move(done_);
  done(*shared->result);
}

}  // namespace elastic::os
