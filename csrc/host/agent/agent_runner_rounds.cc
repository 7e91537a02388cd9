// The workers of a round: how they are started or go on, and their variables.

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/workers/worker_env.h"
#include "host/agent/agent_runner.h"

namespace elastic::host {
namespace {

// No packet leaves the host.
constexpr Duration kOwnReachTimeout = std::chrono::seconds(2);

const std::string kNullDevice = "/dev/null";

}  // namespace

// Round 0 comes before all others: no worker has a rank in it.
void AgentRunner::execute(core::PrepareGroup action) {
  membership_->introduce(action.node);
  auto none = std::make_shared<RoundInfo>();
  workers_.clear();
  for (int local_rank = 0; local_rank < static_cast<int>(options_.workers.size()); ++local_rank) {
    none->workers.push_back({.local_rank = local_rank, .rank = -1});
    workers_.push_back({.local_rank = local_rank, .rank = -1});
  }
  is_opening_files_ = true;
  output_.begin_round(std::move(none), [this](const Status& files) { start_workers(files); });
}

void AgentRunner::execute(core::StartGroup action) {
  adopt_round(std::move(action.round));
  is_opening_files_ = true;
  output_.begin_round(round_, [this](const Status& files) { start_workers(files); });
}

void AgentRunner::execute(core::CutGroup action) {
  probe_.cancel();  // of the store of a round that is over
  supervisor_->cut(shown_round(action.round));
}

// The files of the workers remain those with which they were started.
void AgentRunner::execute(core::ContinueGroup action) {
  const std::vector<ObservedWorker> kept = workers_;
  const bool is_first = round_ == nullptr;
  adopt_round(std::move(action.round));
  output_.continue_round(round_);
  report_starting(output_.files().directory);
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
  begin_probe();
}

void AgentRunner::adopt_round(std::shared_ptr<const RoundInfo> round) {
  round_ = std::move(round);
  stacks_.clear();
  workers_.clear();
  for (const WorkerAssignment& worker : round_->workers) {
    workers_.push_back({.local_rank = worker.local_rank, .rank = worker.rank});
  }
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
  if (round_ != nullptr) report_starting(output_.files().directory);
  std::vector<WorkerCommand> commands;
  commands.reserve(options_.workers.size());
  for (std::size_t local_rank = 0; local_rank < options_.workers.size(); ++local_rank) {
    commands.push_back(command_of(local_rank));
  }
  std::vector<WorkerStream> streams;
  if (capture_) streams = capture_->begin_round(options_.workers);
  inquiry_.begin_round(options_.workers.size());
  const Status status = supervisor_->start(std::move(commands), std::move(streams));
  if (!status.ok()) feed(core::SupervisionLost{std::string(status.message())});
  begin_probe();
}

// A store at the endpoint's port needs no test: the session reaches it.
void AgentRunner::begin_probe() {
  probe_.cancel();
  if (round_ == nullptr || !options_.share_store || is_endpoint_port(round_->master_port)) return;
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
               [this](const std::string& why) { feed(core::agent_event::StoreUnreachable{why}); });
}

void AgentRunner::report_starting(const std::string& log_dir) {
  AgentEvent starting;
  starting.kind = AgentEvent::Kind::kRoundStarting;
  starting.state = machine_.state();
  starting.at = loop_->now();
  starting.log_dir = log_dir;
  starting.coordinator = coordinator_;
  report(std::move(starting));
}

// Reports to the policy that the workers of the round ended, although none was started.
void AgentRunner::cancel_start() {
  is_opening_files_ = false;
  output_.cancel_round();
  if (round_ != nullptr) report_starting("");  // every round of this node is reported
  WorkerExit exit;
  exit.stopped_by_us = true;
  exit.at = loop_->now();
  for (std::size_t i = 0; i < options_.workers.size(); ++i) {
    feed(core::WorkerExited{static_cast<int>(i), -1, exit});
  }
  feed(core::GroupGone{});
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

}  // namespace elastic::host
