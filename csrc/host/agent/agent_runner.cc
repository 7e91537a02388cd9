#include "host/agent/agent_runner.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/hang/collective_verdict.h"
#include "core/hang/mismatch_watch.h"
#include "core/hang/stack_text.h"
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

AgentOptions with_effect(AgentOptions options) {
  // A job of one node gets no others.
  if (!options.inplace_grace || options.rendezvous.is_single_node()) options.inplace_prepare = {};
  if (!options.share_store) options.reach_timeout = {};
  return options;
}

gate::NodeCheckOptions check_options(const AgentOptions& options, const std::string& host) {
  gate::NodeCheckOptions checks{.host = host, .limit = options.node_check_timeout};
  for (const NodeCheck& check : options.node_checks) checks.checks.push_back(check.name);
  return checks;
}

core::AgentMachineOptions machine_options(const AgentOptions& options, const std::string& host) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  std::optional<Duration> template_limit;
  if (options.inplace_grace) template_limit = options.guardian.start_timeout / 2;
  return {.policy = {.node = describe_node(options),
                     .settings = rendezvous.settings,
                     .agent = with_effect(options)},
          .host_name = host,
          .keeps_stacks = !options.log_dir.empty(),
          .template_limit = template_limit,
          .checks = check_options(options, host),
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

// The time for the workers to write their stacks; less than the coordinator allows the nodes.
constexpr Duration kStacksLimit = std::chrono::seconds(1);

const std::string kNullDevice = "/dev/null";

// The guardian knows local ranks only.
void set_ranks(const RoundInfo& round, std::vector<core::WorkerEvidence>* workers) {
  for (core::WorkerEvidence& worker : *workers) {
    const auto local_rank = static_cast<std::size_t>(worker.rank);
    if (local_rank < round.workers.size()) worker.rank = round.workers[local_rank].rank;
  }
  std::sort(workers->begin(), workers->end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
}

}  // namespace

Result<std::unique_ptr<AgentRunner>> AgentRunner::start(os::EventLoop* loop,
                                                        const AgentOptions& options, Sink sink) {
  std::unique_ptr<AgentRunner> node(new AgentRunner(loop, options, std::move(sink)));
  AgentRunner* const raw = node.get();
  // If it cannot be opened, the coordinator has no proof that this agent has ended, and waits for a
  // closed session to resume.
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
  node->supervisor_->on_signatures([raw](auto workers) { raw->on_signatures(std::move(workers)); });
  node->supervisor_->on_extension([raw](const guardian::ExtensionEvent& event) {
    std::visit([raw](const auto& one) { raw->on_extension(one); }, event);
  });
  auto membership = open_membership(
      loop, options.rendezvous, options.run_id,
      [raw](const MembershipEvent& event) { raw->on_membership_event(event); },
      port ? port->port() : std::uint16_t{0});
  if (!membership.ok()) return membership.status();
  node->membership_ = *std::move(membership);
  node->feed(core::agent_event::NodeStarted{});
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
      inquiry_(
          loop, &output_,
          [this](core::FailureFound found) {
            found.worker = machine_.explain(std::move(found.worker));
            feed(found);
          },
          [this](int local_rank, const std::string& error) { report_late(local_rank, error); }),
      watch_timer_(loop, [this] { send_workers(); }),
      deadline_(loop, [this] { feed(core::PolicyTick{}); }),
      checks_(loop, options_, [this](std::uint32_t run, gate::CheckEnd end) {
        feed(core::agent_event::CheckEnded{run, std::move(end)});
      }) {}

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

AgentEvent AgentRunner::make_event(AgentEvent::Kind kind) const {
  return core::event_of(kind, machine_.state(), loop_->now());
}

void AgentRunner::report_message(AgentEvent::Kind kind, const std::string& message) {
  AgentEvent event = make_event(kind);
  event.message = message;
  report(std::move(event));
}

// The other ranks may wait for it in a collective.
void AgentRunner::report_late(int local_rank, const std::string& error) {
  const int rank = workers_.at(static_cast<std::size_t>(local_rank)).rank;
  report_message(AgentEvent::Kind::kNotice,
                 core::describe_worker(rank, "printed " + error + ", and still runs ") +
                     core::duration_text(FailureInquiry::kEndTimeout) +
                     " later: if it hangs, elastic-launch stacks shows where");
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
    inquiry_.add_evidence(&exited);
    exited = machine_.explain(std::move(exited));
  }
  feed(exited);
  inquiry_.worker_ended(event.local_rank, event.pid, exited.exit);
}

void AgentRunner::on_group_ended() {
  probe_.cancel();
  feed(core::agent_event::ProcessesEnded{});
  output_.end_round();
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
  if (is_watched_ && !watch_timer_.armed()) watch_timer_.arm_after(kWatchDelay);
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
    case guardian::Mark::kRaised: return inquiry_.worker_raised(local_rank, mark.at);
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
  const bool is_outer = actions_.run(std::move(decided), [this](core::AgentAction& action) {
    std::visit([this](auto& one) { execute(std::move(one)); }, action);
  });
  if (!is_outer) return;
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
    using About = drain::News::About;
    using Kind = AgentEvent::Kind;
    node->report_message(one.about == About::kExclusion     ? Kind::kHostExcluded
                         : one.about == About::kReadmission ? Kind::kHostReadmitted
                                                            : Kind::kDrain,
                         one.text);
  }
  void operator()(const snapshot::CopyOrder& one) const {
    if (node->copies_ != nullptr) node->copies_->on_order(one);
  }
  void operator()(const gate::ProbeOrder& one) const {
    if (node->prober_ != nullptr) node->prober_->on_order(one);
  }
  void operator()(const gate::NetworkFinding& one) const { node->on_network_finding(one.finding); }
  template <typename Input>
  void operator()(const Input& input) const {
    node->feed(input);
  }
};

void AgentRunner::on_membership_event(const MembershipEvent& event) {
  std::visit(Reader{this}, event);
}

void AgentRunner::on_membership_ready(const MembershipReady& ready) {
  address_ = ready.address;
  bind_host_ = store_host(options_.rendezvous, ready.address);
  hosts_coordinator_ = ready.hosts_coordinator;
  is_store_at_endpoint_ =
      ready.hosts_coordinator && options_.share_store && is_endpoint_port(options_.master_port);
  feed(
      core::RendezvousReady{make_node_name(ready.address), ready.address, ready.hosts_coordinator});
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
  prober_.reset();
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

void AgentRunner::execute(core::CorrectResult action) {
  result_.exit_code = action.exit_code;
  result_.message = std::move(action.message);
}

void AgentRunner::execute(core::agent_action::Flush action) {
  // A guardian that still lives kills all processes below it when the link is closed.
  if (action.is_supervision_lost) supervisor_->close();
  membership_->drain(action.limit, [this] { feed(core::agent_event::Flushed{}); });
}

void AgentRunner::execute(core::agent_action::Close) {
  prober_.reset();
  membership_.reset();
  store_.close();
  output_.finish([this] { report_finished(); });
}

void AgentRunner::report_finished() {
  AgentEvent event = make_event(AgentEvent::Kind::kFinished);
  event.state = result_.state;
  event.message = result_.message;
  report(std::move(event));
}

// ---- The workers of a round: how they are started or continue, their variables, and what is known
// about them.

// Round 0 comes before all others: no worker has a rank in it.
void AgentRunner::execute(core::PrepareGroup action) {
  membership_->introduce(action.node);
  auto none = std::make_shared<RoundInfo>();
  workers_.clear();
  for (int local_rank = 0; local_rank < static_cast<int>(options_.workers.size()); ++local_rank) {
    none->workers.push_back({.local_rank = local_rank, .rank = -1});
    workers_.push_back({.local_rank = local_rank, .rank = -1});
  }
  open_files(std::move(none));
}

void AgentRunner::execute(core::StartGroup action) {
  adopt_round(std::move(action.round));
  open_files(round_);
}

void AgentRunner::open_files(std::shared_ptr<const RoundInfo> round) {
  output_.begin_round(std::move(round),
                      [this](const Status& files) { feed(core::agent_event::FilesOpened{files}); });
}

void AgentRunner::execute(core::CutGroup action) {
  probe_.cancel();  // of the store of a round that is over
  supervisor_->set_stop_reason(action.why.describe());
  supervisor_->cut(shown_round(action.round));
}

// The files of the workers remain those with which they were started.
void AgentRunner::execute(core::ContinueGroup action) {
  const std::vector<ObservedWorker> kept = workers_;
  const bool is_first = round_ == nullptr;
  adopt_round(std::move(action.round));
  output_.continue_round(round_);
  report_starting();
  for (const ObservedWorker& worker : kept) {
    if (worker.state == ObservedWorkerState::kRunning) continue;
    worker_changed(worker.local_rank, worker.state, worker.pid, worker.exit_code);
  }
  if (!supervisor_->running()) return;  // all have ended: the policy has their exits
  const bool are_all_running = std::all_of(kept.begin(), kept.end(), [](const auto& worker) {
    return worker.state == ObservedWorkerState::kRunning;
  });
  // One that ended while it waited is a failure of this round, and may still be examined.
  if (are_all_running) inquiry_.continue_round();
  std::vector<std::vector<std::string>> env;
  for (std::size_t local_rank = 0; local_rank < kept.size(); ++local_rank) {
    env.push_back(next_variables(local_rank));
    if (!is_first) env.back().push_back("ELASTIC_MEMBERSHIP_CHANGE=" + action.reason);
  }
  const Status status = supervisor_->continue_round(shown_round(round_->round), env);
  if (!status.ok()) return feed(core::SupervisionLost{std::string(status.message())});
  for (const ObservedWorker& worker : kept) {
    if (worker.state != ObservedWorkerState::kRunning) continue;
    worker_changed(worker.local_rank, worker.state, worker.pid, 0);
    feed(core::WorkerStarted{worker.local_rank, worker.pid, loop_->now()});
  }
}

void AgentRunner::adopt_round(std::shared_ptr<const RoundInfo> round) {
  round_ = std::move(round);
  stacks_.clear();
  workers_.clear();
  for (const WorkerAssignment& worker : round_->workers) {
    workers_.push_back({.local_rank = worker.local_rank, .rank = worker.rank});
  }
  marks_.begin_round();
  if (copies_ != nullptr) begin_copies();
  send_workers_soon();
  store_.begin_round(round_->group_rank == 0 && !is_store_at_endpoint_);
}

void AgentRunner::execute(core::agent_action::StartWorkers) {
  if (round_ != nullptr) report_starting();
  std::vector<WorkerCommand> commands;
  commands.reserve(options_.workers.size());
  for (std::size_t local_rank = 0; local_rank < options_.workers.size(); ++local_rank) {
    commands.push_back(command_of(local_rank));
  }
  std::vector<WorkerStream> streams = output_.open_channels();
  inquiry_.begin_round(options_.workers.size());
  const Status status = supervisor_->start(std::move(commands), std::move(streams));
  if (!status.ok()) feed(core::SupervisionLost{std::string(status.message())});
}

void AgentRunner::report_starting() {
  AgentEvent starting = make_event(AgentEvent::Kind::kRoundStarting);
  starting.log_dir = output_.files().directory;
  report(std::move(starting));
}

std::vector<std::string> AgentRunner::rank_variables(std::size_t local_rank) const {
  const core::JobConstants job{.run_id = options_.run_id,
                               .role = options_.role,
                               .max_restarts = options_.rendezvous.settings.max_restarts,
                               .share_store = options_.share_store,
                               .changes_in_place = options_.inplace_grace.has_value()};
  const std::string& error_file = output_.files().workers[local_rank].error_file;
  const int rank = static_cast<int>(local_rank);
  if (round_ != nullptr) return core::rank_variables(job, *round_, rank, error_file);
  return core::unranked_variables(job, rank, options_.workers.size(), error_file);
}

// As at a start, the variables of the worker's template precede the round's.
std::vector<std::string> AgentRunner::next_variables(std::size_t local_rank) const {
  const std::vector<std::string> ranks = rank_variables(local_rank);
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> own;
  for (const std::string& entry : options_.workers[local_rank].env) {
    const auto is_same = [&](const std::string& one) { return name_of(one) == name_of(entry); };
    if (std::any_of(ranks.begin(), ranks.end(), is_same)) own.push_back(entry);
  }
  return core::merge_environment({&ranks, &own});
}

WorkerCommand AgentRunner::command_of(std::size_t local_rank) const {
  const WorkerTemplate& worker = options_.workers[local_rank];
  const WorkerFiles& files = output_.files().workers[local_rank];
  const auto path_of = [](StreamTarget target, const std::string& file, const std::string& pipe) {
    return target == StreamTarget::kDiscard ? kNullDevice : pipe.empty() ? file : pipe;
  };
  const std::vector<std::string> ranks = rank_variables(local_rank);
  const std::vector<std::string> common =
      round_ == nullptr ? core::without_ranks(options_.env) : options_.env;
  return {.argv = worker.argv,
          .env = core::merge_environment({&common, &ranks, &worker.env}),
          .cwd = options_.cwd,
          .stdout_path = path_of(worker.stdout_target, files.stdout_path, files.stdout_pipe),
          .stderr_path = path_of(worker.stderr_target, files.stderr_path, files.stderr_pipe),
          .cpus = worker.cpus,
          .has_channel = true};
}

// ---- Progress, stacks and agreed steps, between the coordinator and the guardian.

void AgentRunner::on_progress(const guardian::ProgressEvent& progress) {
  if (round_ == nullptr || membership_ == nullptr || progress.slowest >= round_->workers.size()) {
    return;
  }
  membership_->report(hang::NodeProgress{.round = round_->round,
                                         .reporting = static_cast<std::int32_t>(progress.reporting),
                                         .newest = progress.newest,
                                         .oldest = progress.oldest,
                                         .slowest_rank = round_->workers[progress.slowest].rank,
                                         .slowest_idle = progress.slowest_idle,
                                         .idle = progress.idle,
                                         .section_limit = progress.section_limit,
                                         .limit = options_.hang_timeout,
                                         .action = options_.hang_action,
                                         .has_advanced = progress.has_advanced,
                                         .waiting = static_cast<std::int32_t>(progress.waiting),
                                         .waited = progress.waited,
                                         .saved_step = machine_.saved_step(),
                                         .saved_age = loop_->now() - machine_.saved_at(),
                                         .saved_memory = snapshot_memory()});
}

void AgentRunner::on_signatures(std::vector<core::WorkerEvidence> workers) {
  if (round_ == nullptr || membership_ == nullptr) return;
  set_ranks(*round_, &workers);
  auto signatures = core::node_signatures(workers, os::wall_time(loop_->now()));
  signatures.round = round_->round;
  if (!signatures.blocks.empty()) membership_->report(std::move(signatures));
}

void AgentRunner::on_stacks_wanted(const hang::StacksWanted& wanted) {
  if (wanted.measures_work) return measure_work(wanted);
  collect_stacks([this, wanted](bool any) {
    if (membership_ == nullptr || round_ == nullptr) return;
    hang::NodeStacks stacks{.request = wanted.request, .host = host_name_, .groups = {}};
    if (any) {
      stacks.groups = core::group_stacks(stacks_);
      stacks.collectives = core::collective_states(stacks_, os::wall_time(loop_->now()));
    }
    membership_->report(stacks);
  });
}

void AgentRunner::measure_work(const hang::StacksWanted& wanted) {
  supervisor_->measure_work([this, wanted, round = round_](auto workers) {
    if (membership_ == nullptr || round == nullptr || round != round_) return;
    set_ranks(*round, &workers);
    hang::NodeStacks stacks{.request = wanted.request, .host = host_name_, .groups = {}};
    stacks.groups = core::group_stacks(workers);
    stacks.collectives = core::collective_states(workers, os::wall_time(loop_->now()));
    stacks.idle = idle_.look(workers, loop_->now());
    membership_->report(stacks);
  });
}

// Those that arrive after the end of the round are not of its workers.
void AgentRunner::collect_stacks(std::function<void(bool any)> done) {
  supervisor_->collect_stacks(kStacksLimit,
                              [this, round = round_, done = std::move(done)](auto workers) {
                                if (round == nullptr || round != round_) return done(false);
                                set_ranks(*round, &workers);
                                const bool any = !workers.empty();
                                if (any) stacks_ = std::move(workers);
                                done(any);
                              });
}

void AgentRunner::execute(core::agent_action::CollectStacks) {
  probe_.cancel();
  collect_stacks([this](bool any) { feed(core::agent_event::StacksCollected{any}); });
}

void AgentRunner::execute(core::agent_action::StopWorkers action) {
  probe_.cancel();
  inquiry_.workers_stopped(action.after_failure);
  supervisor_->set_stop_reason(action.how.why.describe());
  supervisor_->stop(action.how.signal, action.how.grace, options_.stop_scope);
}

void AgentRunner::execute(core::agent_action::WriteStacks action) {
  const std::string text = action.reason + "\n" + core::describe_stacks(stacks_);
  if (options_.log_dir.empty()) return report_message(AgentEvent::Kind::kNotice, text);
  output_.write_stacks(text, [this](const std::string& path, const Status& written) {
    report_message(AgentEvent::Kind::kNotice, written.ok()
                                                  ? "the stacks of the workers are in " + path
                                                  : std::string(written.message()));
  });
}

}  // namespace elastic::host
