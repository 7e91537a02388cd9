// The workers of a round: how they are started or continue, their variables, and what is known
// about them.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/hang/stack_text.h"
#include "core/workers/worker_env.h"
#include "host/agent/agent_runner.h"

namespace elastic::host {
namespace {

// The time for the workers to write their stacks; less than the coordinator allows the nodes.
constexpr Duration kStacksLimit = std::chrono::seconds(1);

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
  std::vector<WorkerStream> streams;
  if (capture_) streams = capture_->begin_round(options_.workers);
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
                                         .action = options_.hang_action});
}

void AgentRunner::on_stacks_wanted(const hang::StacksWanted& wanted) {
  collect_stacks([this, wanted](bool any) {
    if (membership_ == nullptr || round_ == nullptr) return;
    hang::NodeStacks stacks{.request = wanted.request, .host = host_name_, .groups = {}};
    if (any) stacks.groups = core::group_stacks(stacks_);
    membership_->report(stacks);
  });
}

// Those that arrive after the end of the round are not of its workers.
void AgentRunner::collect_stacks(std::function<void(bool any)> done) {
  supervisor_->collect_stacks(
      kStacksLimit, [this, round = round_, done = std::move(done)](auto workers) {
        if (round == nullptr || round != round_) return done(false);
        for (core::WorkerEvidence& worker : workers) {  // the guardian knows local ranks only
          const auto local_rank = static_cast<std::size_t>(worker.rank);
          if (local_rank < round->workers.size()) worker.rank = round->workers[local_rank].rank;
        }
        std::sort(workers.begin(), workers.end(),
                  [](const auto& a, const auto& b) { return a.rank < b.rank; });
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
