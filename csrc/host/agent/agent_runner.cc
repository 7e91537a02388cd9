#include "host/agent/agent_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/workers/worker_env.h"
#include "os/net/address.h"

// Theory of operation. Messages of the rendezvous and events of the workers become events of the
// machine. The actions that it returns are executed in order before the next event is handled. An
// action may itself cause an event (a store that cannot be opened), whose actions are queued.
//
// With static ranks and the endpoint's port as master port, the workers use the coordinator's
// store, and MASTER_ADDR is the endpoint's address as it was given.

namespace elastic::host {
namespace {

// How often progress is read: a tenth of the limit, within bounds.
Duration sample_interval(Duration hang_timeout) {
  constexpr Duration kLongest = std::chrono::seconds(1);
  constexpr Duration kShortest = std::chrono::milliseconds(50);
  if (hang_timeout <= Duration::zero()) return kLongest;
  return std::clamp(hang_timeout / 10, kShortest, kLongest);
}

// Changes of workers within this time are reported to observers together.
constexpr Duration kWatchDelay = std::chrono::milliseconds(5);

core::NodeInfo describe_node(const AgentOptions& options) {
  core::NodeInfo node = make_node(options.rendezvous);
  node.local_world_size = static_cast<int>(options.workers.size());
  node.role = options.role;
  // A cut begins before the stop that may follow it.
  const Duration cut = options.inplace_grace.value_or(Duration::zero());
  const auto with_cut = [cut](Duration grace) {
    return std::min(grace, Duration::max() - cut) + cut;
  };
  node.stop_grace = with_cut(options.stop_grace);
  node.failure_grace = with_cut(options.failure_grace.value_or(options.stop_grace));
  return node;
}

// A job of one node gets no others.
std::optional<Duration> prepare_timeout(const AgentOptions& options) {
  if (!options.inplace_grace || options.rendezvous.is_single_node()) return std::nullopt;
  return options.inplace_prepare;
}

core::AgentMachineOptions machine_options(const AgentOptions& options, const std::string& host) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  std::optional<Duration> template_limit;
  if (options.inplace_grace) template_limit = options.guardian.start_timeout / 2;
  return {.policy = {.node = describe_node(options),
                     .settings = rendezvous.settings,
                     .exit_barrier_timeout = options.exit_barrier_timeout,
                     .inplace_grace = options.inplace_grace,
                     .inplace_prepare = prepare_timeout(options),
                     .no_restart_codes = options.no_restart_codes,
                     .bad_node_codes = options.bad_node_codes},
          .host_name = host,
          .stop_grace = options.stop_grace,
          .stacks_on_failure = options.stacks_on_failure,
          .keeps_stacks = !options.log_dir.empty(),
          .straggler_timeout = options.straggler_timeout,
          .template_limit = template_limit,
          .reach_timeout = options.share_store ? options.reach_timeout : Duration::zero(),
          .endpoint_port =
              rendezvous.settings.static_ranks ? rendezvous.endpoint_port : std::uint16_t{0}};
}

// The template imports and never computes, and the workers set their number of threads themselves.
WorkerGroupOptions guardian_options(const AgentOptions& options) {
  const std::vector<std::string> threads = {"OMP_NUM_THREADS=1"};
  WorkerGroupOptions guardian = options.guardian;
  guardian.warm_template.argv = options.warm_template;
  guardian.warm_template.env = core::merge_environment({&options.env, &threads});
  guardian.warm_template.cwd = options.cwd;
  return guardian;
}

// The coordinator listens at the endpoint's port, so no worker could host a store there.
std::uint16_t fixed_port_of(const AgentOptions& options) {
  const bool is_taken =
      !options.share_store && options.master_port == options.rendezvous.endpoint_port;
  return is_taken ? std::uint16_t{0} : options.master_port;
}

}  // namespace

Result<std::unique_ptr<AgentRunner>> AgentRunner::start(os::EventLoop* loop,
                                                        const AgentOptions& options, Sink sink) {
  std::unique_ptr<AgentRunner> node(new AgentRunner(loop, options, std::move(sink)));
  AgentRunner* const raw = node.get();
  // Without one the coordinator waits for the agent of a closed session to resume, as it does
  // without proof that it has ended.
  if (!options.rendezvous.is_single_node()) {
    auto opened = LivenessPort::open(loop);
    if (opened.ok()) node->liveness_port_ = *std::move(opened);
  }
  const LivenessPort* const port = node->liveness_port_.get();
  auto supervisor = Supervisor::create(
      loop, guardian_options(options),
      [raw](const WorkerEvent& event) { raw->on_worker_event(event); }, port ? port->fd() : -1);
  if (!supervisor.ok()) return supervisor.status();
  node->supervisor_ = *std::move(supervisor);
  node->supervisor_->watch(
      sample_interval(options.hang_timeout),
      [raw](const auto& progress) { raw->on_progress(progress); },
      [raw](const auto& mark) { raw->on_mark(mark); });
  auto membership = open_membership(
      loop, options.rendezvous, options.run_id,
      [raw](const MembershipEvent& event) { raw->on_membership_event(event); },
      port ? port->port() : std::uint16_t{0});
  if (!membership.ok()) return membership.status();
  node->membership_ = *std::move(membership);
  return node;
}

AgentRunner::AgentRunner(os::EventLoop* loop, const AgentOptions& options, Sink sink)
    : loop_(loop),
      options_(options),
      sink_(std::move(sink)),
      host_name_(os::host_name()),
      machine_(machine_options(options, host_name_)),
      store_(loop, {.fixed_port = fixed_port_of(options),
                    .ports = options.worker_ports,
                    .is_shared = options.share_store,
                    .limits = options.store_limits,
                    .is_fenced = options.rendezvous.token.is_set(),
                    .log =
                        [this](std::string_view line) {
                          feed(core::Progress{std::string(line), std::nullopt});
                        }}),
      probe_(loop),
      output_(
          loop, options_,
          [this](const std::string& error) { report_message(AgentEvent::Kind::kNotice, error); }),
      inquiry_(loop, &output_, options.capture_stderr ? &capture_.emplace(loop) : nullptr,
               [this](const core::FailureFound& found) { feed(found); }),
      watch_timer_(loop, [this] { send_workers(); }),
      deadline_(loop, [this] { feed(core::PolicyTick{}); }) {}

AgentRunner::~AgentRunner() = default;

void AgentRunner::on_worker_event(const WorkerEvent& event) {
  switch (event.kind) {
    case WorkerEvent::Kind::kStarted:
      worker_changed(event.local_rank, ObservedWorkerState::kRunning, event.pid, 0);
      inquiry_.worker_started(event.local_rank, event.pid);
      feed(core::WorkerStarted{event.local_rank, event.pid, event.at});
      break;
    case WorkerEvent::Kind::kExited: on_worker_exit(event); break;
    case WorkerEvent::Kind::kGroupEnded: on_group_ended(); break;
    case WorkerEvent::Kind::kStartDelayed: feed(core::Progress{event.message}); break;
    case WorkerEvent::Kind::kNotice:
      report_message(AgentEvent::Kind::kNotice, event.message);
      break;
    // Ten seconds after SIGKILL: nothing on this node can end the process; it may hold a device.
    case WorkerEvent::Kind::kStuck:
    case WorkerEvent::Kind::kGuardianLost: feed(core::SupervisionLost{event.message}); break;
  }
}

void AgentRunner::report_message(AgentEvent::Kind kind, const std::string& message) {
  AgentEvent event = make_event(kind);
  event.message = message;
  report(std::move(event));
}

void AgentRunner::on_worker_exit(const WorkerEvent& event) {
  const auto state = event.exit.succeeded()     ? ObservedWorkerState::kSucceeded
                     : event.exit.stopped_by_us ? ObservedWorkerState::kStopped
                                                : ObservedWorkerState::kFailed;
  worker_changed(event.local_rank, state, event.pid, event.exit.shell_code());
  core::WorkerExited exited{event.local_rank, event.pid,
                            machine_.explain(event.local_rank, event.exit)};
  marks_.ended(event.exit.last_step);
  if (!event.exit.succeeded() && !event.exit.stopped_by_us) {
    exited.facts = inquiry_.facts_now(event.local_rank, exited.exit);
  }
  feed(exited);
  inquiry_.worker_ended(event.local_rank, event.pid, exited.exit);
}

void AgentRunner::on_group_ended() {
  probe_.cancel();
  feed(core::agent_event::ProcessesEnded{});
  output_.end_round();
  if (capture_) capture_->end_round();
  inquiry_.finish_round([this] { feed(core::agent_event::FailuresExamined{}); });
}

// ---- Reports for observers.

void AgentRunner::worker_changed(int local_rank, ObservedWorkerState state, int pid,
                                 int exit_code) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= workers_.size()) return;
  ObservedWorker& worker = workers_[index];
  worker.state = state;
  if (pid > 0) worker.pid = pid;
  worker.exit_code = exit_code;
  send_workers_soon();
}

void AgentRunner::send_workers_soon() {
  if (is_watched_ && !watch_timer_.armed()) watch_timer_.arm(loop_->now() + kWatchDelay);
}

void AgentRunner::send_workers() {
  if (!is_watched_ || membership_ == nullptr) return;
  if (round_ == nullptr) return membership_->send_workers({.round = 0, .host = host_name_});
  membership_->send_workers({.round = round_->round, .host = host_name_, .workers = workers_});
}

void AgentRunner::on_mark(const guardian::MarkEvent& mark) {
  const auto local_rank = static_cast<int>(mark.id);
  switch (mark.mark) {
    case guardian::Mark::kOpened: return marks_.opened(mark.at);
    case guardian::Mark::kMember: return feed(core::WorkerCapable{local_rank});
    case guardian::Mark::kLeft: marks_.ended(mark.step); return feed(core::WorkerLeft{local_rank});
    case guardian::Mark::kFirstStep: break;
  }
  if (round_ == nullptr) return;
  auto first = marks_.reported(mark.step, store_.first_client(), store_.last_key());
  if (!first) return;
  AgentEvent event = make_event(AgentEvent::Kind::kFirstStep);
  event.at = mark.at;
  event.local_rank = local_rank;
  event.first_step = first;
  report(std::move(event));
}

void AgentRunner::feed(const core::AgentInput& event) {
  std::vector<core::AgentAction> decided;
  machine_.step(event, loop_->now(), &decided);
  for (core::AgentAction& action : decided) actions_.push_back(std::move(action));
  if (is_executing_) return;
  is_executing_ = true;
  while (!actions_.empty()) {
    core::AgentAction action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](auto& one) { execute(std::move(one)); }, action);
  }
  is_executing_ = false;
  if (const auto deadline = machine_.next_deadline()) {
    deadline_.arm(*deadline);
  } else {
    deadline_.disarm();
  }
}

Result<std::uint16_t> AgentRunner::port_for_next_round() {
  if (is_store_at_endpoint_) return options_.master_port;
  const RendezvousOptions& rendezvous = options_.rendezvous;
  if (rendezvous.settings.static_ranks && rendezvous.node_rank != 0) return std::uint16_t{0};
  return store_.prepare(bind_host_);
}

void AgentRunner::report(AgentEvent event) {
  event.round = round_;
  event.hosts_coordinator = hosts_coordinator_;
  if (event.kind == AgentEvent::Kind::kRoundStarting) event.coordinator = coordinator_;
  sink_(std::move(event));
}

// ---- What the membership delivers.

struct AgentRunner::Reader {
  AgentRunner* node;
  void operator()(const MembershipReady& ready) const { node->on_membership_ready(ready); }
  void operator()(const MembershipProgress& log_progress) const {
    node->feed(core::Progress{log_progress.message, log_progress.deadline});
  }
  void operator()(const MembershipWatch& watch) const {
    node->is_watched_ = watch.is_on;
    node->send_workers();
  }
  void operator()(const MembershipCoordinatorLog& log) const {
    node->report_message(AgentEvent::Kind::kCoordinatorLog, log.line);
  }
  void operator()(const MembershipCoordinator& now) const { node->on_coordinator(now); }
  void operator()(const rdzv::Waiting& waiting) const {
    core::Progress progress{waiting.message};
    if (waiting.remaining) {
      progress.deadline = add_saturating(node->loop_->now(), *waiting.remaining);
    }
    node->feed(progress);
  }
  void operator()(const MembershipStoreClients& clients) const {
    node->store_.allow(clients.round, clients.addresses);
  }
  void operator()(const MembershipLost& lost) const {
    node->feed(core::RendezvousLost{lost.exit_code, lost.message});
  }
  void operator()(const rdzv::Round& one) const { node->on_round(one); }
  void operator()(const hang::StacksWanted& one) const { node->on_stacks_wanted(one); }
  void operator()(const drain::News& one) const {
    node->report_message(AgentEvent::Kind::kDrain, one.text);
  }
  template <typename Input>
  void operator()(const Input& input) const {
    node->feed(input);
  }
};

void AgentRunner::on_membership_event(const MembershipEvent& event) {
  std::visit(Reader{this}, event);
}

void AgentRunner::on_membership_ready(const MembershipReady& ready) {
  bind_host_ = store_host(options_.rendezvous, ready.address);
  hosts_coordinator_ = ready.hosts_coordinator;
  is_store_at_endpoint_ =
      ready.hosts_coordinator && options_.share_store && is_endpoint_port(options_.master_port);
  feed(core::RendezvousReady{make_node_name(ready.address), ready.address});
}

void AgentRunner::execute(core::agent_action::Observe action) {
  if (membership_ == nullptr) return;
  std::visit([this](const auto& one) { membership_->report(one); }, action.message);
}

void AgentRunner::on_coordinator(const MembershipCoordinator& now) {
  coordinator_ = now.coordinator;
  hosts_coordinator_ = now.is_here;
  if (!now.moved) return;
  AgentEvent event = make_event(AgentEvent::Kind::kCoordinatorMoved);
  event.coordinator = coordinator_;
  event.moved = now.moved;
  event.message = now.message;
  report(std::move(event));
}

bool AgentRunner::is_endpoint_port(std::uint16_t port) const {
  const RendezvousOptions& rendezvous = options_.rendezvous;
  return rendezvous.settings.static_ranks && port != 0 && port == rendezvous.endpoint_port;
}

void AgentRunner::on_round(rdzv::Round round) {
  const bool is_at_endpoint =
      round.record->coordinator_rank == 0 && is_endpoint_port(round.record->master_port);
  if (is_at_endpoint) {
    auto record = std::make_shared<RoundRecord>(*round.record);
    record->master_addr = options_.rendezvous.endpoint_host;
    round.record = std::move(record);
  }
  feed(round);
}

// ---- The end.

void AgentRunner::execute(core::Finish action) {
  for (WorkerFailure& failure : action.result.failures) {
    const auto index = static_cast<std::size_t>(failure.local_rank);
    const WorkerFiles& files = output_.files().workers[index];
    failure.error_file = files.error_file;
    failure.stdout_path = files.stdout_path;
    failure.stderr_path = files.stderr_path;
  }
  result_ = std::move(action.result);
  feed(core::agent_event::ResultFixed{store_.is_needed()});
}

void AgentRunner::execute(core::agent_action::Flush action) {
  // A guardian that still lives kills all processes below it when the link is closed.
  if (action.is_supervision_lost) supervisor_->close();
  membership_->drain(action.limit, [this] { feed(core::agent_event::Flushed{}); });
}

void AgentRunner::execute(core::agent_action::Close) {
  membership_.reset();
  store_.close();
  output_.finish([this] {
    if (!capture_) return report_finished();
    capture_->finish([this] { report_finished(); });
  });
}

void AgentRunner::report_finished() {
  AgentEvent event = make_event(AgentEvent::Kind::kFinished);
  event.state = result_.state;
  event.message = result_.message;
  report(std::move(event));
}

}  // namespace elastic::host
