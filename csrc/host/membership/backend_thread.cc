#include "host/membership/backend_thread.h"

#include <algorithm>
#include <utility>

#include "core/base/duration_text.h"
#include "elastic/agent.h"
#include "os/loop/clock.h"
#include "os/loop/random_seed.h"
#include "os/net/address.h"
#include "os/net/interfaces.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

// When an outage is first logged, and how often from then on.
constexpr Duration kFirstLogDelay = 1s;
constexpr Duration kLogInterval = 10s;
// How long the end waits for a call of the backend. The loop of the owner stands still meanwhile.
constexpr Duration kCallLimit = 1s;

// Messages that the node does not need are not forwarded to it.
std::optional<MembershipEvent> as_event(const RendezvousAction& action) {
  return std::visit(
      [](const auto& one) -> std::optional<MembershipEvent> {
        using Action = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Action, rdzv::Resumed> ||
                      std::is_same_v<Action, rdzv::Superseded>) {
          return std::nullopt;
        } else {
          return one;
        }
      },
      action);
}

}  // namespace

Result<std::unique_ptr<BackendThread>> BackendThread::start(const RendezvousOptions& options,
                                                            BackendSinks sinks) {
  auto notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  auto runner = std::make_shared<BackendRunner>(options, *std::move(notifier), std::move(sinks));
  auto thread = os::DetachableThread::start("elastic-shared", [runner] { runner->run(); });
  if (!thread.ok()) return thread.status();
  return std::unique_ptr<BackendThread>(new BackendThread(std::move(runner), *std::move(thread)));
}

BackendThread::~BackendThread() {
  runner_->stop();
  if (!thread_.join_within(kCallLimit)) runner_->abandon();
}

BackendRunner::BackendRunner(const RendezvousOptions& options, os::Notifier notifier,
                             BackendSinks sinks)
    : options_(options),
      store_name_(options.backend->name()),
      sinks_(std::move(sinks)),
      notifier_(std::move(notifier)),
      member_(options.settings, os::random_seed(), os::monotonic_now()) {}

void BackendRunner::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stop_requested_ = true;
  }
  wake();
}

void BackendRunner::abandon() {
  const std::lock_guard lock(sinks_mutex_);
  sinks_ = {};
}

void BackendRunner::notify(const MembershipEvent& event) {
  const std::lock_guard lock(sinks_mutex_);
  if (sinks_.event) sinks_.event(event);
}

void BackendRunner::call_begins(Duration allowed) {
  const std::lock_guard lock(sinks_mutex_);
  if (sinks_.call) sinks_.call(allowed);
}

void BackendRunner::call_ends() {
  const std::lock_guard lock(sinks_mutex_);
  if (sinks_.call) sinks_.call(std::nullopt);
}

void BackendRunner::send(const NodeStatement& statement) {
  {
    const std::lock_guard lock(mutex_);
    outgoing_.push_back(statement);
  }
  wake();
}

void BackendRunner::flush() {
  {
    const std::lock_guard lock(mutex_);
    is_flush_requested_ = true;
  }
  wake();
}

void BackendRunner::wake() {
  notifier_.notify();
  options_.backend->interrupt();
}

void BackendRunner::run() {
  while (take_requests()) {
    if (!is_lost_) poll_state();
    finish_flush();
    wait();
  }
}

// False: the thread is to stop.
bool BackendRunner::take_requests() {
  std::vector<NodeStatement> statements;
  {
    const std::lock_guard lock(mutex_);
    if (is_stop_requested_) return false;
    statements.swap(outgoing_);
    is_flushing_ = is_flush_requested_;
  }
  for (NodeStatement& statement : statements) {
    if (const auto* join = std::get_if<rdzv::Join>(&statement)) self_ = join->node.id;
    has_left_ = std::holds_alternative<rdzv::Leave>(statement);
    std::visit([this](auto& one) { member_.send(std::move(one)); }, statement);
  }
  return true;
}

void BackendRunner::poll_state() {
  RendezvousBackend& store = *options_.backend;
  call_begins({});
  const Result<std::optional<StoredState>> stored = store.get_state();
  call_ends();
  Instant now = os::monotonic_now();
  if (!stored.ok()) {
    if (!must_give_up(stored.status())) {
      log_outage(stored.status(), now);
      give_up_if_not_ok(member_.read_failed(stored.status(), now));
    }
    return;
  }
  deliver_ready();
  std::vector<RendezvousAction> delivered;
  Status status = member_.read(*stored, now, &delivered);
  std::optional<core::SharedWrite> write;
  if (status.ok()) write = member_.propose(now, &delivered);
  if (write) {
    call_begins({});
    const Result<StoredWrite> answer = store.set_state(write->bytes, write->token);
    call_ends();
    now = os::monotonic_now();
    if (answer.ok()) {
      log_recovery(now);
      status = member_.wrote(*answer, now, &delivered);
    } else if (!must_give_up(answer.status())) {
      log_outage(answer.status(), now);
      status = member_.write_failed(answer.status(), now);
    }
  } else {
    log_recovery(now);
  }
  waiting_nodes_.store(member_.machine().waiting_nodes(), std::memory_order_relaxed);
  log_timings();
  deliver(delivered);
  give_up_if_not_ok(status);
}

void BackendRunner::log_timings() {
  std::string difference = member_.timing_difference();
  if (difference == reported_timings_) return;
  reported_timings_ = std::move(difference);
  if (!reported_timings_.empty()) notify(MembershipProgress{reported_timings_});
}

// Returns whether the error is permanent; then MembershipLost was sent.
bool BackendRunner::must_give_up(const Status& fault) {
  switch (fault.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted: return false;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound: lose(kExitUsage, fault); break;
    case StatusCode::kFailedPrecondition: lose(kExitCoordinatorLost, fault); break;
    case StatusCode::kPeerViolation: lose(kExitRejected, fault); break;
    default: lose(kExitInternal, fault); break;
  }
  return true;
}

void BackendRunner::give_up_if_not_ok(const Status& status) {
  if (status.ok()) return;
  const bool was_never_there = status.code() == StatusCode::kDeadlineExceeded;
  lose(was_never_there ? kExitJoinTimedOut : kExitCoordinatorLost, status);
}

void BackendRunner::lose(int exit_code, const Status& why) {
  is_lost_ = true;
  notify(MembershipLost{exit_code, store_name_ + " rendezvous: " + std::string(why.message())});
}

void BackendRunner::deliver(const std::vector<RendezvousAction>& delivered) {
  for (const RendezvousAction& action : delivered) {
    if (auto event = as_event(action)) notify(*event);
  }
}

void BackendRunner::deliver_ready() {
  if (std::exchange(is_ready_delivered_, true)) return;
  notify(MembershipReady{published_address()});
}

std::string BackendRunner::published_address() const {
  if (!options_.local_addr.empty()) {
    const auto found = os::look_up(options_.local_addr, 0);
    // A name of this host may resolve to loopback here and to another address elsewhere.
    const bool is_usable =
        found.ok() && (options_.settings.max_nodes == 1 || os::parse_address(options_.local_addr) ||
                       !found->front().is_loopback());
    if (is_usable) return found->front().host();
  }
  if (std::string address = options_.backend->local_address(); !address.empty()) return address;
  if (std::string address = os::primary_address(); !address.empty()) return address;
  return "127.0.0.1";
}

void BackendRunner::log_outage(const Status& cause, Instant now) {
  if (!outage_began_) {
    outage_began_ = now;
    next_log_ = now + kFirstLogDelay;
  }
  if (now < next_log_) return;
  next_log_ = now + kLogInterval;
  const Duration limit =
      is_ready_delivered_ ? options_.settings.store_grace : options_.settings.join_timeout;
  notify(MembershipProgress{"the " + store_name_ + " rendezvous cannot be reached: " +
                                std::string(cause.message()) + ", gives up",
                            add_saturating(*outage_began_, limit)});
}

void BackendRunner::log_recovery(Instant now) {
  if (!outage_began_) return;
  if (now >= *outage_began_ + kFirstLogDelay) {
    notify(MembershipProgress{"the " + store_name_ + " rendezvous can be reached again after " +
                              core::duration_text(now - *outage_began_)});
  }
  outage_began_.reset();
}

void BackendRunner::finish_flush() {
  if (!is_flushing_ || is_flush_reported_) return;
  if (member_.has_delivered_result() && !std::exchange(has_left_, true)) {
    member_.send(rdzv::Leave{self_, "the job is over"});
  }
  if (!is_lost_ && !member_.has_sent_all()) return;
  is_flush_reported_ = true;
  const std::lock_guard lock(sinks_mutex_);
  if (sinks_.flushed) sinks_.flushed();
}

void BackendRunner::wait() {
  if (is_lost_) {
    (void)notifier_.wait({});
    return;
  }
  if (is_watched_) {
    const Instant deadline = member_.next_poll(true);
    call_begins(std::max(deadline - os::monotonic_now(), Duration::zero()));
    is_watched_ = options_.backend->wait_for_change(member_.token(), deadline);
    call_ends();
  }
  if (!is_watched_) (void)notifier_.wait({.deadline = member_.next_poll(false)});
}

}  // namespace elastic::host
