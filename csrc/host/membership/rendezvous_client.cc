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
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/loop/loop_object.h"
#include "os/loop/wait.h"

// Theory of operation. The state lives on a loop thread, which receives the events of the
// membership and sends the statements that follow from them and from the caller's requests. Callers
// read the state on that thread too; a waiting caller is woken after each change and reads it
// again.
//
// A round that arrives after its caller has timed out is kept for the next call. If it ends before
// that call, none of its workers was started here, and the node joins the next round at once.

namespace elastic::host {
namespace {

constexpr std::size_t kLogLinesMax = 256;

Status error_of(const MembershipLost& lost) {
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
  core::NodeInfo node = make_node(options.rendezvous);
  node.local_world_size = options.local_world_size;
  node.role = options.role;
  node.stop_grace = node.failure_grace = options.stop_grace;
  return node;
}

}  // namespace

// The node of a RendezvousClient; its workers are the caller's. Loop thread only.
class ClientNode {
 public:
  // Opens the membership. `changed` outlives the object, and is notified after each change.
  static Result<std::unique_ptr<ClientNode>> open(os::EventLoop* loop,
                                                  RendezvousClientOptions options,
                                                  os::Notifier* changed);
  ClientNode(os::EventLoop* loop, RendezvousClientOptions options, os::Notifier* changed)
      : loop_(*loop),
        options_(std::move(options)),
        changed_(*changed),
        participant_(describe_node(options_), options_.rendezvous.settings),
        store_(loop, {.fixed_port = options_.store_port,
                      .ports = {},
                      .limits = options_.store_limits,
                      .is_fenced = options_.rendezvous.token.is_set()}),
        leave_timer_(loop, [this] { continue_leaving(); }) {}
  ClientNode(const ClientNode&) = delete;
  ClientNode& operator=(const ClientNode&) = delete;

  // A caller requests a round.
  void query();
  // The round, or why there is none; nullopt: it is not known yet.
  std::optional<Result<RendezvousRound>> take_outcome();
  // What take_outcome() waits for, as a clause; "": unknown.
  std::string wait_reason() const;
  void wake() const;
  int waiting_nodes() const;
  bool is_closed() const { return is_closed_; }
  std::optional<JobResult> result() const { return result_; }
  void close(const JobResult& result);
  // `parted` is notified when has_parted() holds. forget() before it ends.
  void leave(const std::string& reason, Duration limit, os::Notifier* parted);
  bool has_parted() const { return has_parted_; }
  void forget(os::Notifier* parted) { std::erase(leaving_, parted); }
  std::string address() const { return participant_.node().address; }
  std::vector<std::string> take_log_lines();

 private:
  void join();
  void update(const core::ParticipantEvent& event);
  void rejoin_unless_working();
  bool is_over_for_others() const;
  void begin_to_leave(const std::string& reason, Duration limit);
  void continue_leaving();
  void receive(const MembershipEvent& event);
  void on(const MembershipReady& ready);
  void on(const MembershipProgress& log_progress) {
    add_wait(log_progress.message, log_progress.deadline);
  }
  void on(const MembershipCoordinatorLog&) {}  // a library has no log
  void on(const MembershipCoordinator& now) {
    if (now.moved) add_note(now.message);
  }
  void on(const MembershipStoreClients& clients) { store_.allow(clients.round, clients.addresses); }
  void on(const MembershipWatch&) {}  // the caller starts the workers
  template <typename OfExtension>
  requires std::is_constructible_v<session::AboutWorkers, const OfExtension&>
  void on(const OfExtension&) {}  // the workers are the caller's
  void on(const MembershipLost& lost);
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

  os::EventLoop& loop_;
  const RendezvousClientOptions options_;
  os::Notifier& changed_;
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
  RoundStore store_;
  std::unique_ptr<Membership> membership_;
  core::LeaveOrder leave_order_;
  std::string leave_reason_;
  std::vector<os::Notifier*> leaving_;  // of the calls of leave() that wait
  bool has_parted_ = false;             // the leave was acknowledged, or its limit is over
  os::Timer leave_timer_;
};

Result<std::unique_ptr<ClientNode>> ClientNode::open(os::EventLoop* loop,
                                                     RendezvousClientOptions options,
                                                     os::Notifier* changed) {
  auto self = std::make_unique<ClientNode>(loop, std::move(options), changed);
  auto membership =
      open_membership(loop, self->options_.rendezvous, self->options_.run_id,
                      [raw = self.get()](const MembershipEvent& event) { raw->receive(event); });
  if (!membership.ok()) return membership.status();
  self->membership_ = *std::move(membership);
  return self;
}

// ---- The caller's requests.

std::string ClientNode::wait_reason() const {
  return waiting_for_.empty() ? "" : with_time(waiting_for_, waiting_until_);
}

void ClientNode::wake() const {
  changed_.notify();
  for (os::Notifier* const one : leaving_) one->notify();
}

int ClientNode::waiting_nodes() const {
  return std::max(membership_->waiting_nodes(), is_over_for_others() ? 1 : 0);
}

void ClientNode::close(const JobResult& result) {
  is_closed_ = true;
  membership_->send(rdzv::Close{participant_.node().id, result});
}

void ClientNode::leave(const std::string& reason, Duration limit, os::Notifier* parted) {
  leaving_.push_back(parted);
  if (!leave_order_.has_begun()) begin_to_leave(reason, limit);
}

std::vector<std::string> ClientNode::take_log_lines() {
  std::vector<std::string> lines(log_lines_.begin(), log_lines_.end());
  log_lines_.clear();
  return lines;
}

std::optional<Result<RendezvousRound>> ClientNode::take_outcome() {
  if (leave_order_.has_begun()) {
    return Status(StatusCode::kFailedPrecondition, "this node has left");
  }
  if (!end_.ok()) return end_;
  if (!error_.ok()) return std::exchange(error_, Status());
  if (participant_.state() != core::ParticipantState::kAssigned) return std::nullopt;
  update(core::WorkersStarted{});
  return offered_round_;
}

void ClientNode::query() {
  if (!end_.ok() || leave_order_.has_begun()) return;
  is_asked_ = true;
  error_ = Status();
  if (participant_.state() == core::ParticipantState::kAssigned) return;
  update(core::WorkersGone{});
  join();
}

void ClientNode::join() {
  if (!is_ready_ || participant_.state() == core::ParticipantState::kJoining) return;
  const Result<std::uint16_t> port = store_.prepare(bind_host_);
  if (!port.ok()) {
    fail(port.status());
    return;
  }
  store_port_ = *port;
  update(core::JoinRequested{});
}

void ClientNode::update(const core::ParticipantEvent& event) {
  std::vector<core::NodeStatement> statements;
  participant_.step(event, &statements);
  for (core::NodeStatement& statement : statements) {
    if (auto* join = std::get_if<rdzv::Join>(&statement)) join->node.store_port = store_port_;
    membership_->send(statement);
  }
}

// A node with workers first reports them gone; it has them until the caller requests a new round.
void ClientNode::rejoin_unless_working() {
  if (!leave_order_.has_begun() && !participant_.has_workers()) join();
}

bool ClientNode::is_over_for_others() const {
  return !end_.ok() || (participant_.has_workers() && participant_.must_rejoin());
}

void ClientNode::begin_to_leave(const std::string& reason, Duration limit) {
  leave_reason_ = reason;
  const core::LeaveOrder::Node node{.is_job_over = result_.has_value(),
                                    .has_workers = participant_.has_workers(),
                                    .serves_store = store_.is_needed(),
                                    .nodes = offered_round_.record.nodes};
  const bool waits = leave_order_.begin(node, limit, loop_.now());
  changed_.notify();
  if (waits) update(core::WorkersGone{});
  continue_leaving();
}

void ClientNode::continue_leaving() {
  const auto left = leave_order_.tick(loop_.now());
  if (const auto next = leave_order_.next_deadline()) leave_timer_.arm(*next);
  if (!left) return;
  update(core::LeaveRequested{leave_reason_});
  membership_->drain(*left, [this] {
    has_parted_ = true;
    for (os::Notifier* const one : leaving_) one->notify();
  });
}

// ---- The events of the membership.

void ClientNode::receive(const MembershipEvent& event) {
  std::visit([this](const auto& one) { this->on(one); }, event);
}

void ClientNode::on(const MembershipReady& ready) {
  bind_host_ = store_host(options_.rendezvous, ready.address);
  participant_.locate(make_node_name(ready.address), ready.address);
  is_ready_ = true;
  if (is_asked_) join();
}

void ClientNode::on(const MembershipLost& lost) {
  update(core::RendezvousUnreachable{});
  store_.end_round();
  end_ = error_of(lost);
  changed_.notify();
}

void ClientNode::on(const rdzv::Round& round) {
  if (participant_.classify(round) == core::ParticipantInput::kStale) return;
  update(round);
  store_.begin_round(round.own.group_rank == 0);
  offered_round_ = {*round.record, round.own};
  waiting_for_.clear();
  changed_.notify();
}

void ClientNode::on(const rdzv::Restart& restart) {
  if (participant_.classify(restart) == core::ParticipantInput::kStale) return;
  update(restart);
  rejoin_unless_working();
}

void ClientNode::on(const rdzv::Waiting& waiting) {
  waiting_for_ = waiting.message;
  waiting_until_.reset();
  if (waiting.remaining) {
    waiting_until_ = add_saturating(loop_.now(), *waiting.remaining);
  }
  add_wait(waiting_for_, waiting_until_);
}

void ClientNode::on(const rdzv::Evicted& evicted) {
  update(evicted);
  add_note("this node was evicted: " + evicted.reason);
  rejoin_unless_working();
}

void ClientNode::on(const rdzv::Refused& refused) {
  update(refused);
  fail(refused.error);
}

void ClientNode::on(const rdzv::TimedOut& timed_out) {
  update(timed_out);
  fail(Status(StatusCode::kDeadlineExceeded, timed_out.message));
}

void ClientNode::on(const rdzv::Closed& closed) {
  update(closed);
  is_closed_ = true;
  result_ = *closed.result;
  const std::string& why = closed.result->message;
  end_ = Status(StatusCode::kAborted, "the job is closed" + (why.empty() ? "" : ": " + why));
  changed_.notify();
}

void ClientNode::on(const rdzv::RoundOver& over) {
  if (over.round != participant_.round()) return;
  store_.end_round();
  leave_order_.round_over(loop_.now());
  if (const auto next = leave_order_.next_deadline()) leave_timer_.arm(*next);
}

void ClientNode::fail(const Status& why) {
  error_ = why;
  changed_.notify();
}

void ClientNode::add_wait(const std::string& message, std::optional<Instant> deadline) {
  add_note(with_time(message, deadline));
}

void ClientNode::add_note(const std::string& message) {
  if (log_lines_.size() >= kLogLinesMax) log_lines_.pop_front();
  log_lines_.push_back(message);
}

}  // namespace elastic::host

namespace elastic {

class RendezvousClient::Impl {
 public:
  using Node = host::ClientNode;

  explicit Impl(os::Notifier notifier) : changed(std::move(notifier)) {}

  os::Notifier changed;  // by the node
  std::unique_ptr<os::LoopObject<Node>> node;
};

RendezvousClient::RendezvousClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RendezvousClient::~RendezvousClient() = default;

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
  auto impl = std::make_unique<Impl>(*std::move(notifier));
  auto node = os::LoopObject<Impl::Node>::start("elastic-rdzv", [&](os::EventLoop* loop) {
    return Impl::Node::open(loop, std::move(options), &impl->changed);
  });
  if (!node.ok()) return node.status();
  impl->node = *std::move(node);
  return std::unique_ptr<RendezvousClient>(new RendezvousClient(std::move(impl)));
}

Result<RendezvousRound> RendezvousClient::next_rendezvous(
    Instant deadline, const std::function<bool()>& interrupted) {
  if (!impl_->node->call(&Impl::Node::query)) {
    return Status(StatusCode::kFailedPrecondition, "the client belongs to the parent process");
  }
  const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
  while (true) {
    std::optional<Result<RendezvousRound>> outcome = impl_->node->ask(&Impl::Node::take_outcome);
    if (outcome) return *std::move(outcome);
    const Status waited = impl_->changed.wait(limits);
    if (waited.code() == StatusCode::kDeadlineExceeded) {
      const std::string reason = impl_->node->ask(&Impl::Node::wait_reason);
      return Status(StatusCode::kDeadlineExceeded,
                    "no round within the timeout" + (reason.empty() ? "" : ": " + reason));
    }
    if (!waited.ok()) return waited;
    if (interrupted && interrupted()) return Status(StatusCode::kCancelled, "interrupted");
  }
}

bool RendezvousClient::leave(const std::string& reason, Duration limit,
                             const std::function<bool()>& interrupted) {
  const Instant deadline = add_saturating(os::monotonic_now(), limit);
  Result<os::Notifier> parted = os::Notifier::create();
  if (!parted.ok()) return false;
  const bool is_here =
      impl_->node->call([&](Impl::Node& node) { node.leave(reason, limit, &*parted); });
  if (!is_here) return false;
  const os::WaitLimits limits{.deadline = deadline, .interrupted = &interrupted};
  const auto wait = [&] {
    while (true) {
      if (impl_->node->ask(&Impl::Node::has_parted)) return os::monotonic_now() < deadline;
      if (interrupted && interrupted()) return false;
      if (!parted->wait(limits).ok()) return false;
    }
  };
  const bool is_received = wait();
  impl_->node->call([&](Impl::Node& node) { node.forget(&*parted); });
  return is_received;
}

void RendezvousClient::wake() { impl_->node->call(&Impl::Node::wake); }
int RendezvousClient::waiting_nodes() const { return impl_->node->ask(&Impl::Node::waiting_nodes); }
bool RendezvousClient::is_closed() const { return impl_->node->ask(&Impl::Node::is_closed); }
std::optional<JobResult> RendezvousClient::result() const {
  return impl_->node->ask(&Impl::Node::result);
}
void RendezvousClient::set_closed(const JobResult& result) {
  impl_->node->call([&](Impl::Node& node) { node.close(result); });
}
std::string RendezvousClient::address() const { return impl_->node->ask(&Impl::Node::address); }
std::vector<std::string> RendezvousClient::take_log_lines() {
  return impl_->node->ask(&Impl::Node::take_log_lines);
}

}  // namespace elastic
