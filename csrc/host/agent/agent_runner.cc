#include "host/agent/agent_runner.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "core/workers/worker_env.h"
#include "host/membership/membership_factory.h"
#include "host/membership/node_identity.h"
#include "os/net/address.h"

// Theory of operation. Messages of the rendezvous and events of the workers become PolicyEvents.
// The actions that the policy returns are executed in order before the next event is handled. An
// action may itself cause an event (a store that cannot be opened), which is queued.
//
// With static ranks and the endpoint's port as master port, the workers use the coordinator's
// store, and MASTER_ADDR is the endpoint's address as it was given.
//
// Shutdown has an order. The result is fixed first. If this process serves the last round's store,
// the store stays open until no worker of the round is left on any node. Then the messages to the
// rendezvous are flushed, and a coordinator in this process waits until no node needs it. Then the
// remaining output is written to the console. The result is delivered last.

namespace elastic::host {
namespace {

// The time to flush this node's leave to the rendezvous while the job continues.
constexpr Duration kLeaveLimit = std::chrono::seconds(5);
// The rendezvous evicts a node that does not stop its workers within its grace period and this.
constexpr Duration kStopMargin = std::chrono::seconds(10);
// How often progress is read: a tenth of the limit, within bounds.
Duration sample_interval(Duration hang_timeout) {
  constexpr Duration kLongest = std::chrono::seconds(1);
  constexpr Duration kShortest = std::chrono::milliseconds(50);
  if (hang_timeout <= Duration::zero()) return kLongest;
  return std::clamp(hang_timeout / 10, kShortest, kLongest);
}

// No packet leaves the host.
constexpr Duration kOwnReachTimeout = std::chrono::seconds(2);

// Changes of workers within this time are reported to observers together.
constexpr Duration kWatchDelay = std::chrono::milliseconds(5);

const std::string kNullDevice = "/dev/null";

NodeInfo describe_node(const AgentOptions& options) {
  NodeInfo node = make_node(options.rendezvous);
  node.local_world_size = static_cast<int>(options.workers.size());
  node.role = options.role;
  // The time of a cut precedes that of a stop.
  const Duration cut = options.inplace_grace.value_or(Duration::zero());
  const auto with_cut = [cut](Duration grace) {
    return std::min(grace, Duration::max() - cut) + cut;
  };
  node.stop_grace = with_cut(options.stop_grace);
  node.failure_grace = with_cut(options.failure_grace.value_or(options.stop_grace));
  return node;
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
  node->open_liveness_port();
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
      policy_({.node = describe_node(options),
               .settings = options.rendezvous.settings,
               .exit_barrier_timeout = options.exit_barrier_timeout,
               .inplace_grace = options.inplace_grace,
               .no_restart_codes = options.no_restart_codes,
               .bad_node_codes = options.bad_node_codes}),
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
      host_name_(os::host_name()),
      inquiry_(loop, &output_, options.capture_stderr ? &capture_.emplace(loop) : nullptr,
               [this](const core::FailureFound& found) { feed(found); }),
      watch_timer_(loop, [this] { send_workers(); }),
      deadline_(loop, [this] { feed(core::PolicyTick{}); }),
      join_timer_(loop, [this] { begin_to_join(); }),
      shutdown_timer_(loop, [this] { shut_down(); }),
      drain_timer_(loop, [this] { give_up_drain(); }),
      held_stop_timer_(loop, [this] { release_stop(); }) {}

AgentRunner::~AgentRunner() = default;

void AgentRunner::request_stop(int signal) {
  if (is_finished_)
    shutdown_timer_.arm(loop_->now());  // a stop request ends the wait for other nodes
  feed(core::StopRequested{signal});
}

void AgentRunner::forward(int signal) { supervisor_->forward(signal, SignalScope::kLeader); }

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
  AgentEvent event;
  event.kind = kind;
  event.state = policy_.state();
  event.at = loop_->now();
  event.message = message;
  report(std::move(event));
}

void AgentRunner::on_worker_exit(const WorkerEvent& event) {
  const auto state = event.exit.succeeded()     ? ObservedWorkerState::kSucceeded
                     : event.exit.stopped_by_us ? ObservedWorkerState::kStopped
                                                : ObservedWorkerState::kFailed;
  worker_changed(event.local_rank, state, event.pid, event.exit.shell_code());
  core::WorkerExited exited{event.local_rank, event.pid, event.exit};
  drain_.worker_ended(event.local_rank);
  marks_.ended(event.exit.last_step);
  if (event.local_rank == killed_.local_rank && event.exit.signal == SIGKILL) {
    exited.exit.verdict = killed_.verdict;
    exited.exit.ends_job = killed_.ends_job;
    exited.exit.is_unreachable = killed_.is_unreachable;
  }
  if (event.exit.succeeded()) on_worker_finished(event);
  if (!event.exit.succeeded() && !event.exit.stopped_by_us) {
    is_stop_for_failure_ = true;
    exited.facts = inquiry_.facts_now(event.local_rank, exited.exit);
  }
  feed(exited);
  inquiry_.worker_ended(event.local_rank, event.pid, exited.exit);
}

void AgentRunner::kill_worker(Killed killed) {
  killed_ = std::move(killed);
  supervisor_->forward(SIGKILL, SignalScope::kGroup, killed_.local_rank);
}

// The round is not over here before its failures are explained: the job's result may follow.
void AgentRunner::on_group_ended() {
  probe_.cancel();
  held_stop_.reset();  // nothing is left to stop
  held_stop_timer_.disarm();
  output_.end_round();
  if (capture_) capture_->end_round();
  inquiry_.finish_round([this] { feed(core::GroupGone{}); });
}

// ---- Reports for observers.

void AgentRunner::on_watch(bool is_on) {
  is_watched_ = is_on;
  if (is_on) send_workers();
}

void AgentRunner::worker_changed(int local_rank, ObservedWorkerState state, int pid,
                                 int exit_code) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= workers_.size()) return;
  ObservedWorker& worker = workers_[index];
  worker.state = state;
  if (pid > 0) worker.pid = pid;
  worker.exit_code = exit_code;
  if (is_watched_ && !watch_timer_.armed()) watch_timer_.arm(loop_->now() + kWatchDelay);
}

void AgentRunner::send_workers() {
  if (!is_watched_ || membership_ == nullptr) return;
  membership_->send_workers(
      {.round = round_ == nullptr ? 0 : round_->round, .host = host_name_, .workers = workers_});
}

void AgentRunner::on_mark(const guardian::MarkEvent& mark) {
  const auto local_rank = static_cast<int>(mark.id);
  switch (mark.mark) {
    case guardian::Mark::kOpened: return marks_.opened(mark.at);
    case guardian::Mark::kMember: return feed(core::WorkerCapable{local_rank});
    case guardian::Mark::kLeft: marks_.ended(mark.step); return feed(core::WorkerLeft{local_rank});
    case guardian::Mark::kFirstStep: break;
  }
  auto first = marks_.reported(mark.step, store_.first_client(), store_.last_key());
  if (!first) return;
  AgentEvent event;
  event.kind = AgentEvent::Kind::kFirstStep;
  event.state = policy_.state();
  event.at = mark.at;
  event.local_rank = local_rank;
  event.first_step = first;
  report(std::move(event));
}

void AgentRunner::feed(const core::PolicyEvent& event) {
  std::vector<core::PolicyAction> decided;
  policy_.step(event, loop_->now(), &decided);
  for (core::PolicyAction& action : decided) actions_.push_back(std::move(action));
  if (is_executing_) return;
  is_executing_ = true;
  while (!actions_.empty()) {
    core::PolicyAction action = std::move(actions_.front());
    actions_.pop_front();
    execute(std::move(action));
  }
  is_executing_ = false;
  if (const auto deadline = policy_.next_deadline()) {
    deadline_.arm(*deadline);
  } else {
    deadline_.disarm();
  }
}

void AgentRunner::execute(core::PolicyAction action) {
  if (auto* send_action = std::get_if<core::Send>(&action)) {
    send(std::move(send_action->statement));
  } else if (auto* start = std::get_if<core::StartGroup>(&action)) {
    start_group(std::move(start->round));
  } else if (auto* next = std::get_if<core::ContinueGroup>(&action)) {
    continue_group(std::move(next->round), next->reason);
  } else if (const auto* cut = std::get_if<core::CutGroup>(&action)) {
    probe_.cancel();  // of the store of a round that is over
    supervisor_->cut(shown_round(cut->round));
  } else if (const auto* stop = std::get_if<core::StopGroup>(&action)) {
    stop_group(*stop);
  } else if (auto* delivered = std::get_if<core::Report>(&action)) {
    report(std::move(delivered->event));
  } else {
    finish(std::move(std::get<core::Finish>(action).result));
  }
}

void AgentRunner::send(NodeStatement statement) {
  if (auto* join = std::get_if<rdzv::Join>(&statement)) {
    const Result<std::uint16_t> port = port_for_next_round();
    if (!port.ok()) {
      feed(core::LocalFault{kExitCannotServe, std::string(port.status().message())});
      return;
    }
    join->node.store_port = *port;
  }
  membership_->send(statement);
}

Result<std::uint16_t> AgentRunner::port_for_next_round() {
  if (is_store_at_endpoint_) return options_.master_port;
  const RendezvousOptions& rendezvous = options_.rendezvous;
  if (rendezvous.settings.static_ranks && rendezvous.node_rank != 0) return std::uint16_t{0};
  return store_.prepare(bind_host_);
}

void AgentRunner::start_group(std::shared_ptr<const RoundInfo> round) {
  adopt_round(std::move(round));
  is_opening_files_ = true;
  output_.begin_round(round_, [this](const Status& files) { start_workers(files); });
}

// The files of the workers remain those of the round in which they were started.
void AgentRunner::continue_group(std::shared_ptr<const RoundInfo> round,
                                 const std::string& reason) {
  const std::vector<ObservedWorker> kept = workers_;
  adopt_round(std::move(round));
  report_starting(output_.files().directory);
  is_stop_for_failure_ = is_stop_for_loss_ = false;
  for (const ObservedWorker& worker : kept) {
    if (worker.state == ObservedWorkerState::kRunning) continue;
    worker_changed(worker.local_rank, worker.state, worker.pid, worker.exit_code);
    drain_.worker_ended(worker.local_rank);
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
    env.back().push_back("ELASTIC_MEMBERSHIP_CHANGE=" + reason);
  }
  const Status status = supervisor_->continue_round(shown_round(round_->round), env);
  if (!status.ok()) return feed(core::SupervisionLost{std::string(status.message())});
  for (const ObservedWorker& worker : kept) {
    if (worker.state != ObservedWorkerState::kRunning) continue;
    worker_changed(worker.local_rank, worker.state, worker.pid, 0);
    feed(core::WorkerStarted{worker.local_rank, worker.pid, loop_->now()});
  }
  begin_probe();
}

void AgentRunner::adopt_round(std::shared_ptr<const RoundInfo> round) {
  round_ = std::move(round);
  killed_ = {};
  has_sent_finish_ = false;
  stacks_.clear();
  may_hold_stop_ = options_.stacks_on_failure;
  workers_.clear();
  std::vector<std::int32_t> ranks;
  for (const WorkerAssignment& worker : round_->workers) {
    workers_.push_back({.local_rank = worker.local_rank, .rank = worker.rank});
    ranks.push_back(worker.rank);
  }
  drain_.begin_round(round_->round, std::move(ranks));
  marks_.begin_round();
  if (is_watched_) watch_timer_.arm(loop_->now() + kWatchDelay);
  store_.begin_round(round_->group_rank == 0 && !is_store_at_endpoint_);
}

void AgentRunner::start_workers(const Status& files) {
  is_opening_files_ = false;
  if (!files.ok()) {
    feed(core::LocalFault{kExitCannotLog, std::string(files.message())});
    return;
  }
  report_starting(output_.files().directory);
  std::vector<WorkerCommand> commands;
  commands.reserve(options_.workers.size());
  for (std::size_t local_rank = 0; local_rank < options_.workers.size(); ++local_rank) {
    commands.push_back(command_of(local_rank));
  }
  std::vector<WorkerStream> streams;
  if (capture_) streams = capture_->begin_round(options_.workers);
  is_stop_for_failure_ = false;
  is_stop_for_loss_ = false;
  inquiry_.begin_round(options_.workers.size());
  const Status status = supervisor_->start(std::move(commands), std::move(streams));
  if (!status.ok()) feed(core::SupervisionLost{std::string(status.message())});
  begin_probe();
}

// The workers find out themselves with the timeout of their process group, after minutes, and do
// not name the hosts. A store at the endpoint's port needs no test: the session reaches it.
void AgentRunner::begin_probe() {
  probe_.cancel();
  if (!options_.share_store || is_endpoint_port(round_->master_port)) return;
  if (options_.reach_timeout <= Duration::zero()) return;
  if (round_->group_rank == 0) {  // its workers may need no process group
    const Duration limit = std::min(options_.reach_timeout, kOwnReachTimeout);
    probe_.begin(round_->master_addr, round_->master_port, limit, [this](const std::string& why) {
      report_message(AgentEvent::Kind::kNotice,
                     host_name_ + " does not reach the workers' store, which is on this host (is " +
                         "its interface up?): " + why);
    });
    return;
  }
  probe_.begin(round_->master_addr, round_->master_port, options_.reach_timeout,
               [this](const std::string& why) {
                 for (const ObservedWorker& worker : workers_) {
                   if (worker.state != ObservedWorkerState::kRunning) continue;
                   const std::string text = host_name_ + " does not reach the workers' store of " +
                                            "the round on the node of rank 0: " + why;
                   return kill_worker(
                       {.local_rank = worker.local_rank, .verdict = text, .is_unreachable = true});
                 }
               });
}

void AgentRunner::report_starting(const std::string& log_dir) {
  AgentEvent starting;
  starting.kind = AgentEvent::Kind::kRoundStarting;
  starting.state = policy_.state();
  starting.at = loop_->now();
  starting.log_dir = log_dir;
  starting.coordinator = coordinator_;
  report(std::move(starting));
}

// Reports to the policy that the workers of the round ended, although none was started.
void AgentRunner::cancel_start() {
  is_opening_files_ = false;
  output_.cancel_round();
  report_starting("");  // every round of this node is reported
  WorkerExit exit;
  exit.stopped_by_us = true;
  exit.at = loop_->now();
  for (const WorkerAssignment& worker : round_->workers) {
    feed(core::WorkerExited{worker.local_rank, -1, exit});
  }
  feed(core::GroupGone{});
}

std::vector<std::string> AgentRunner::rank_variables(std::size_t local_rank) const {
  const core::JobConstants job{.run_id = options_.run_id,
                               .role = options_.role,
                               .max_restarts = options_.rendezvous.settings.max_restarts,
                               .share_store = options_.share_store,
                               .changes_in_place = options_.inplace_grace.has_value()};
  return core::rank_variables(job, *round_, static_cast<int>(local_rank),
                              output_.files().workers[local_rank].error_file);
}

// As at a start, the variables of the worker's template come before those of the round.
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
  return {.argv = worker.argv,
          .env = core::merge_environment({&options_.env, &ranks, &worker.env}),
          .cwd = options_.cwd,
          .stdout_path = path_of(worker.stdout_target, files.stdout_path, files.stdout_pipe),
          .stderr_path = path_of(worker.stderr_target, files.stderr_path, files.stderr_pipe),
          .cpus = worker.cpus,
          .has_channel = true};
}

void AgentRunner::report(AgentEvent event) {
  event.round = round_;
  event.hosts_coordinator = hosts_coordinator_;
  sink_(std::move(event));
}

void AgentRunner::finish(AgentResult result) {
  for (WorkerFailure& failure : result.failures) {
    const auto index = static_cast<std::size_t>(failure.local_rank);
    const WorkerFiles& files = output_.files().workers[index];
    failure.error_file = files.error_file;
    failure.stdout_path = files.stdout_path;
    failure.stderr_path = files.stderr_path;
  }
  result_ = std::move(result);
  is_finished_ = true;
  if (std::exchange(is_opening_files_, false)) output_.cancel_round();
  // In the loop's next iteration at the earliest: this may run in a callback of an object that the
  // shutdown destroys. Workers on other nodes may use our store until the last one has ended.
  const bool is_awaited = result_.job && store_.is_needed() && round_->group_world_size > 1;
  if (!is_awaited) {
    shutdown_timer_.arm(loop_->now());
    return;
  }
  AgentEvent waiting;
  waiting.kind = AgentEvent::Kind::kProgress;
  waiting.state = result_.state;
  waiting.at = loop_->now();
  waiting.message = "keeping the round's store until the workers of the other nodes are gone";
  report(std::move(waiting));
  shutdown_timer_.arm(add_saturating(loop_->now(), shutdown_limit()));
}

Duration AgentRunner::shutdown_limit() const {
  return std::min<Duration>(options_.stop_grace, std::chrono::hours(1)) + kStopMargin;
}

void AgentRunner::shut_down() {
  if (!std::exchange(is_shutting_down_, true)) {
    // A guardian that still lives kills all processes below it when the link is closed.
    if (result_.state == AgentState::kUnknown) supervisor_->close();
    membership_->drain(result_.job ? shutdown_limit() : kLeaveLimit,
                       [this] { shutdown_timer_.arm(loop_->now()); });
    return;
  }
  if (membership_ == nullptr) return;  // already destroyed
  membership_.reset();
  store_.close();
  output_.finish([this] {
    if (!capture_) return report_finished();
    capture_->finish([this] { report_finished(); });
  });
}

void AgentRunner::report_finished() {
  AgentEvent event;
  event.kind = AgentEvent::Kind::kFinished;
  event.state = result_.state;
  event.at = loop_->now();
  event.message = result_.message;
  report(std::move(event));
}

}  // namespace elastic::host
