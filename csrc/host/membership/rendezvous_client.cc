#include "elastic/rendezvous_client.h"

#include <algorithm>
#include <deque>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/rendezvous/leave_order.h"
#include "core/rendezvous/participant.h"
#include "elastic/agent.h"
#include "host/membership/membership.h"
#include "host/store/round_store.h"
#include "os/base/process.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"
#include "os/loop/wait.h"

// Theory of operation. The state lives on a loop thread, which receives the events of the
// membership and sends the statements that follow from them and from the caller's requests. Callers
// read the state on that thread too; a waiting caller is woken after each change and reads it
// again.
//
// A round that arrives after its caller has timed out is kept for the next call. If it ends before
// that call, none of its workers was started here, and the node joins the next round at once.

namespace elastic {
namespace {

constexpr std::size_t kLogLinesMax = 256;

Status error_of(const host::MembershipLost& lost) {
  switch (lost.exit_code) {
    case kExitJoinTimedOut: return {StatusCode::kDeadlineExceeded, lost.message};
    case kExitRejected:
    case kExitUsage: return {StatusCode::kInvalidArgument, lost.message};
    default: return {StatusCode::kUnavailable, lost.message};
  }
}

std::string with_time(const std::string& message, std::optional<Instant> deadline) {
  std::optional<Duration> remaining;
  if (deadline) remaining = std::max(*deadline - os::monotonic_now(), Duration::zero());
  return core::with_remaining(message, remaining);
}

core::NodeInfo describe_node(const RendezvousClientOptions& options) {
  core::NodeInfo node = host::make_node(options.rendezvous);
  node.local_world_size = options.local_world_size;
  node.role = options.role;
  node.stop_grace = node.failure_grace = options.stop_grace;
  return node;
}

}  // namespace

class RendezvousClient::Impl {
 public:
  Impl(RendezvousClientOptions options, os::Notifier changed,
       std::unique_ptr<os::LoopThread> thread)
      : options_(std::move(options)),
        changed_(std::move(changed)),
        thread_(std::move(thread)),
        participant_(describe_node(options_), options_.rendezvous.settings),
        store_(&thread_->loop(), {.fixed_port = options_.store_port,
                                  .ports = {},
                                  .limits = options_.store_limits,
                                  .is_fenced = options_.rendezvous.token.is_set()}),
        leave_timer_(&thread_->loop(), [this] { continue_leaving(); }) {}
  ~Impl() {
    on_loop([this] {
      membership_.reset();
      leave_timer_.disarm();
      store_.close();
    });
  }

  bool is_in_child() const { return fork_guard_.is_in_child(); }
  // Runs `work` on the loop thread. Does nothing in a forked child, which has no such thread.
  template <typename Work>
  bool on_loop(Work work) const {
    if (is_in_child()) return false;
    thread_->call(work);
    return true;
  }

  Status begin();
  Result<RendezvousRound> next_rendezvous(Instant deadline,
                                          const std::function<bool()>& interrupted);
  void wake();
  Status late() const;
  int waiting_nodes() const;
  bool is_closed() const;
  std::optional<JobResult> result() const;
  void set_closed(const JobResult& result);
  bool leave(const std::string& reason, Duration limit, const std::function<bool()>& interrupted);
  std::string address() const;
  std::vector<std::string> take_log_lines();

 private:
  // Loop thread only.
  void query();
  void join();
  void update(const core::ParticipantEvent& event);
  void rejoin_unless_working();
  bool is_over_for_others() const;
  void begin_to_leave(const std::string& reason, Duration limit);
  void continue_leaving();
  void receive(const host::MembershipEvent& event);
  void on(const host::MembershipReady& ready);
  void on(const host::MembershipProgress& log_progress) {
    add_wait(log_progress.message, log_progress.deadline);
  }
  void on(const host::MembershipCoordinatorLog&) {}  // a library has no log
  void on(const host::MembershipCoordinator& now) {
    if (now.moved) add_note(now.message);
  }
  void on(const host::MembershipStoreClients& clients) {
    store_.allow(clients.round, clients.addresses);
  }
  void on(const host::MembershipWatch&) {}  // the caller starts the workers
  template <typename OfExtension>
  requires std::is_constructible_v<session::AboutWorkers, const OfExtension&>
  void on(const OfExtension&) {}  // the workers are the caller's
  void on(const host::MembershipLost& lost);
  void on(const rdzv::Round& round);
  void on(const rdzv::Restart& restart);
  void on(const rdzv::Waiting& waiting);
  void on(const rdzv::Evicted& evicted);
  void on(const rdzv::Refused& refused);
  void on(const rdzv::TimedOut& timed_out);
  void on(const rdzv::Closed& closed);
  void on(const rdzv::RoundOver& over);
  void fail(const Status& why);
  void add_note(const std::string& message);
  void add_wait(const std::string& message, std::optional<Instant> deadline);
  std::optional<Result<RendezvousRound>> take_outcome();

  // Constant after construction.
  const RendezvousClientOptions options_;
  const os::ForkGuard fork_guard_;

  os::Notifier changed_;  // any thread
  const std::unique_ptr<os::LoopThread> thread_;

  // Loop thread only.
  core::Participant participant_;  // its workers count as started when a call returns the round
  std::uint16_t store_port_ = 0;   // for the next round
  bool is_asked_ = false;          // a caller has requested a round
  bool is_ready_ = false;
  RendezvousRound offered_round_;  // the last round assigned
  Status error_;                   // why there is no round; the next call tries again
  Status end_;                     // as error_, but final
  std::string waiting_for_;
  std::optional<Instant> waiting_until_;  // the time of what waiting_for_ ends with
  bool is_closed_ = false;
  std::optional<JobResult> result_;
  std::deque<std::string> log_lines_;
  std::string bind_host_;
  host::RoundStore store_;
  std::unique_ptr<host::Membership> membership_;
  core::LeaveOrder leave_order_;
  std::string leave_reason_;
  std::vector<os::Notifier*> leaving_;  // of the calls of leave() that wait
  bool has_parted_ = false;             // the leave was acknowledged, or its limit is over
  os::Timer leave_timer_;
};

Status RendezvousClient::Impl::begin() {
  Status status;
  thread_->call([&] {
    auto membership =
        host::open_membership(&thread_->loop(), options_.rendezvous, options_.run_id,
                              [this](const host::MembershipEvent& event) { receive(event); });
    if (membership.ok()) {
      membership_ = *std::move(membership);
    } else {
      status = membership.status();
    }
  });
  return status;
}

// ---- The caller's thread.

Result<RendezvousRound> RendezvousClient::Impl::next_rendezvous(
    Instant deadline, const std::function<bool()>& interrupted) {
  if (!on_loop([this] { query(); })) {
    return Status(StatusCode::kFailedPrecondition, "the client belongs to the parent process");
  }
  const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
  while (true) {
    std::optional<Result<RendezvousRound>> outcome;
    on_loop([&] { outcome = take_outcome(); });
    if (outcome) return *std::move(outcome);
    const Status waited = changed_.wait(limits);
    if (waited.code() == StatusCode::kDeadlineExceeded) return late();
    if (!waited.ok()) return waited;
    if (interrupted && interrupted()) return Status(StatusCode::kCancelled, "interrupted");
  }
}

void RendezvousClient::Impl::wake() {
  on_loop([this] {
    changed_.notify();
    for (os::Notifier* const one : leaving_) one->notify();
  });
}

Status RendezvousClient::Impl::late() const {
  std::string message = "no round within the timeout";
  on_loop([&] {
    if (!waiting_for_.empty()) message += ": " + with_time(waiting_for_, waiting_until_);
  });
  return {StatusCode::kDeadlineExceeded, std::move(message)};
}

int RendezvousClient::Impl::waiting_nodes() const {
  int count = 0;
  on_loop([&] { count = std::max(membership_->waiting_nodes(), is_over_for_others() ? 1 : 0); });
  return count;
}

bool RendezvousClient::Impl::is_closed() const {
  bool is_closed = false;
  on_loop([&] { is_closed = is_closed_; });
  return is_closed;
}

std::optional<JobResult> RendezvousClient::Impl::result() const {
  std::optional<JobResult> result;
  on_loop([&] { result = result_; });
  return result;
}

void RendezvousClient::Impl::set_closed(const JobResult& result) {
  on_loop([&] {
    is_closed_ = true;
    membership_->send(rdzv::Close{participant_.node().id, result});
  });
}

bool RendezvousClient::Impl::leave(const std::string& reason, Duration limit,
                                   const std::function<bool()>& interrupted) {
  const Instant deadline = add_saturating(os::monotonic_now(), limit);
  Result<os::Notifier> parted = os::Notifier::create();
  if (!parted.ok()) return false;
  const bool is_here = on_loop([&] {
    leaving_.push_back(&*parted);
    if (!leave_order_.has_begun()) begin_to_leave(reason, limit);
  });
  if (!is_here) return false;
  const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
  const auto wait = [&] {
    while (true) {
      bool has_parted = false;
      on_loop([&] { has_parted = has_parted_; });
      if (has_parted) return os::monotonic_now() < deadline;
      if (interrupted && interrupted()) return false;
      if (!parted->wait(limits).ok()) return false;
    }
  };
  const bool is_received = wait();
  on_loop([&] { std::erase(leaving_, &*parted); });
  return is_received;
}

std::string RendezvousClient::Impl::address() const {
  std::string address;
  on_loop([&] { address = participant_.node().address; });
  return address;
}

std::vector<std::string> RendezvousClient::Impl::take_log_lines() {
  std::vector<std::string> notes;
  on_loop([&] {
    notes.assign(log_lines_.begin(), log_lines_.end());
    log_lines_.clear();
  });
  return notes;
}

// ---- The loop thread: statements.

std::optional<Result<RendezvousRound>> RendezvousClient::Impl::take_outcome() {
  if (leave_order_.has_begun()) {
    return Status(StatusCode::kFailedPrecondition, "this node has left");
  }
  if (!end_.ok()) return end_;
  if (!error_.ok()) return std::exchange(error_, Status());
  if (participant_.state() != core::ParticipantState::kAssigned) return std::nullopt;
  update(core::WorkersStarted{});
  return offered_round_;
}

void RendezvousClient::Impl::query() {
  if (!end_.ok() || leave_order_.has_begun()) return;
  is_asked_ = true;
  error_ = Status();
  if (participant_.state() == core::ParticipantState::kAssigned) return;
  update(core::WorkersGone{});
  join();
}

void RendezvousClient::Impl::join() {
  if (!is_ready_ || participant_.state() == core::ParticipantState::kJoining) return;
  const Result<std::uint16_t> port = store_.prepare(bind_host_);
  if (!port.ok()) {
    fail(port.status());
    return;
  }
  store_port_ = *port;
  update(core::JoinRequested{});
}

void RendezvousClient::Impl::update(const core::ParticipantEvent& event) {
  std::vector<core::NodeStatement> statements;
  participant_.step(event, &statements);
  for (core::NodeStatement& statement : statements) {
    if (auto* join = std::get_if<rdzv::Join>(&statement)) join->node.store_port = store_port_;
    membership_->send(statement);
  }
}

// A node with workers first reports them gone; it has them until the caller requests a new round.
void RendezvousClient::Impl::rejoin_unless_working() {
  if (!leave_order_.has_begun() && !participant_.has_workers()) join();
}

bool RendezvousClient::Impl::is_over_for_others() const {
  return !end_.ok() || (participant_.has_workers() && participant_.must_rejoin());
}

void RendezvousClient::Impl::begin_to_leave(const std::string& reason, Duration limit) {
  leave_reason_ = reason;
  const core::LeaveOrder::Node node{.is_job_over = result_.has_value(),
                                    .has_workers = participant_.has_workers(),
                                    .serves_store = store_.is_needed(),
                                    .nodes = offered_round_.record.nodes};
  const bool waits = leave_order_.begin(node, limit, thread_->loop().now());
  changed_.notify();
  if (waits) update(core::WorkersGone{});
  continue_leaving();
}

void RendezvousClient::Impl::continue_leaving() {
  const auto left = leave_order_.tick(thread_->loop().now());
  if (const auto next = leave_order_.next_deadline()) leave_timer_.arm(*next);
  if (!left) return;
  update(core::LeaveRequested{leave_reason_});
  membership_->drain(*left, [this] {
    has_parted_ = true;
    for (os::Notifier* const one : leaving_) one->notify();
  });
}

// ---- The loop thread: events.

void RendezvousClient::Impl::receive(const host::MembershipEvent& event) {
  std::visit([this](const auto& one) { on(one); }, event);
}

void RendezvousClient::Impl::on(const host::MembershipReady& ready) {
  bind_host_ = host::store_host(options_.rendezvous, ready.address);
  participant_.locate(host::make_node_name(ready.address), ready.address);
  is_ready_ = true;
  if (is_asked_) join();
}

void RendezvousClient::Impl::on(const host::MembershipLost& lost) {
  update(core::RendezvousUnreachable{});
  store_.end_round();
  end_ = error_of(lost);
  changed_.notify();
}

void RendezvousClient::Impl::on(const rdzv::Round& round) {
  if (participant_.classify(round) == core::ParticipantInput::kStale) return;
  update(round);
  store_.begin_round(round.own.group_rank == 0);
  offered_round_ = {*round.record, round.own};
  waiting_for_.clear();
  changed_.notify();
}

void RendezvousClient::Impl::on(const rdzv::Restart& restart) {
  if (participant_.classify(restart) == core::ParticipantInput::kStale) return;
  update(restart);
  rejoin_unless_working();
}

void RendezvousClient::Impl::on(const rdzv::Waiting& waiting) {
  waiting_for_ = waiting.message;
  waiting_until_.reset();
  if (waiting.remaining) {
    waiting_until_ = add_saturating(thread_->loop().now(), *waiting.remaining);
  }
  add_wait(waiting_for_, waiting_until_);
}

void RendezvousClient::Impl::on(const rdzv::Evicted& evicted) {
  update(evicted);
  add_note("this node was evicted: " + evicted.reason);
  rejoin_unless_working();
}

void RendezvousClient::Impl::on(const rdzv::Refused& refused) {
  update(refused);
  fail(refused.error);
}

void RendezvousClient::Impl::on(const rdzv::TimedOut& timed_out) {
  update(timed_out);
  fail(Status(StatusCode::kDeadlineExceeded, timed_out.message));
}

void RendezvousClient::Impl::on(const rdzv::Closed& closed) {
  update(closed);
  is_closed_ = true;
  result_ = *closed.result;
  const std::string& why = closed.result->message;
  end_ = Status(StatusCode::kAborted, "the job is closed" + (why.empty() ? "" : ": " + why));
  changed_.notify();
}

void RendezvousClient::Impl::on(const rdzv::RoundOver& over) {
  if (over.round != participant_.round()) return;
  store_.end_round();
  leave_order_.round_over(thread_->loop().now());
  if (const auto next = leave_order_.next_deadline()) leave_timer_.arm(*next);
}

void RendezvousClient::Impl::fail(const Status& why) {
  error_ = why;
  changed_.notify();
}

void RendezvousClient::Impl::add_wait(const std::string& message, std::optional<Instant> deadline) {
  add_note(with_time(message, deadline));
}

void RendezvousClient::Impl::add_note(const std::string& message) {
  if (log_lines_.size() >= kLogLinesMax) log_lines_.pop_front();
  log_lines_.push_back(message);
}

// ---- The public class.

RendezvousClient::RendezvousClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RendezvousClient::~RendezvousClient() {
  // A forked child has no loop thread to stop and join.
  if (impl_->is_in_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<RendezvousClient>> RendezvousClient::start(RendezvousClientOptions options) {
  if (Status fault = options.rendezvous.settings.validate(); !fault.ok()) return fault;
  if (options.local_world_size < 1 || options.local_world_size > kLocalWorldSizeMax) {
    return Status(StatusCode::kInvalidArgument,
                  "local_world_size: must be 1 to " + std::to_string(kLocalWorldSizeMax));
  }
  // Other nodes get it cut: two roles with one beginning would be one role.
  if (options.role.size() > kNodeTextBytesMax) {
    return Status(StatusCode::kInvalidArgument,
                  "role: longer than " + std::to_string(kNodeTextBytesMax) + " bytes");
  }
  Result<os::Notifier> notifier = os::Notifier::create();
  if (!notifier.ok()) return notifier.status();
  Result<std::unique_ptr<os::LoopThread>> thread = os::LoopThread::start("elastic-rdzv");
  if (!thread.ok()) return thread.status();
  auto impl = std::make_unique<Impl>(std::move(options), *std::move(notifier), *std::move(thread));
  if (Status status = impl->begin(); !status.ok()) return status;
  return std::unique_ptr<RendezvousClient>(new RendezvousClient(std::move(impl)));
}

Result<RendezvousRound> RendezvousClient::next_rendezvous(
    Instant deadline, const std::function<bool()>& interrupted) {
  return impl_->next_rendezvous(deadline, interrupted);
}
void RendezvousClient::wake() { impl_->wake(); }
int RendezvousClient::waiting_nodes() const { return impl_->waiting_nodes(); }
bool RendezvousClient::is_closed() const { return impl_->is_closed(); }
std::optional<JobResult> RendezvousClient::result() const { return impl_->result(); }
void RendezvousClient::set_closed(const JobResult& result) { impl_->set_closed(result); }
bool RendezvousClient::leave(const std::string& reason, Duration limit,
                             const std::function<bool()>& interrupted) {
  return impl_->leave(reason, limit, interrupted);
}
std::string RendezvousClient::address() const { return impl_->address(); }
std::vector<std::string> RendezvousClient::take_log_lines() { return impl_->take_log_lines(); }

}  // namespace elastic
