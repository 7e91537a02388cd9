#include "core/agent/agent_machine.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "core/base/earliest.h"
#include "core/rendezvous/rendezvous_events.h"

// Theory of operation. The policy decides about rounds, workers and the result (agent_policy.cc).
// This machine connects it with what can delay, cause or follow its decisions:
//
// Start. A join waits for a port, and the workers wait for their files. A stop while they do
// cancels the start, and counts as their end.
//
// Stop. After a failure the stacks of the workers are evidence, and a worker that is stopped has
// none. So the first stop of a round is held until they were collected, for a short time. A later
// stop is not: it is a repetition, or more urgent.
//
// Verdict. A hang, or a store that this node does not reach, is answered by the kill of one worker.
// That is its failure, and the policy hears of it as of any other.
//
// Agreed step. DrainMember has this node's part (agent_drain.cc). If nothing has come of a request
// in time, it becomes a stop request.
//
// End. The result is fixed first. If this node serves the round's store, that stays open until no
// worker of the round is left on any node. Then the messages to the rendezvous are flushed, and a
// coordinator in this process waits until no node needs it. Then the rest is closed. Each of these
// is begun by a tick, never by the event that causes it: what that event came from may be
// destroyed. A stop request ends the wait for other nodes.

namespace elastic::core {
namespace {

constexpr const char* kNoStepWithoutJob =
    "the job continues without this node, so that no step is agreed on with it: stopping it";

}  // namespace

// The deadlines of the machine itself, in the order of what follows at them, which resets the
// deadline. The policy and the parts come before.
struct AgentMachine::Timers {
  using M = AgentMachine;
  struct Row {
    std::optional<Instant> M::*at = nullptr;
    void (M::*run)() = nullptr;
  };

  static constexpr Row kRows[] = {
      {.at = &M::join_at_, .run = &M::join_late},
      {.at = &M::unfit_until_, .run = &M::leave_unfit},
      {.at = &M::port_at_, .run = &M::open_store},
      {.at = &M::held_until_, .run = &M::release_stop},
      {.at = &M::examined_until_, .run = &M::end_examination},
      {.at = &M::shutdown_at_, .run = &M::shut_down},
  };
};

AgentMachine::AgentMachine(AgentMachineOptions options)
    : options_(std::move(options)),
      policy_(options_.policy),
      checks_(options_.checks),
      questions_(options_.policy.agent.asks_for_advice
                     ? advice_limit(options_.policy.settings.node_timeout)
                     : Duration::zero()) {}

void AgentMachine::step(const AgentInput& input, Instant now, std::vector<AgentAction>* out) {
  now_ = now;
  out_ = out;
  std::visit([this](const auto& one) { on(one); }, input);
  out_ = nullptr;
}

std::optional<Instant> AgentMachine::next_deadline() const {
  auto first = earliest({policy_.next_deadline(), parts_deadline()});
  for (const Timers::Row& row : Timers::kRows) first = earliest({first, this->*row.at});
  return first;
}

void AgentMachine::on(const PolicyTick& event) {
  decide(event);
  feed_ticks();
  for (const Timers::Row& row : Timers::kRows) {
    if (const auto at = this->*row.at; at && now_ >= *at) (this->*row.run)();
  }
}

void AgentMachine::report(AgentEvent::Kind kind, std::string message) {
  AgentEvent event = event_of(kind, policy_.state(), now_);
  event.message = std::move(message);
  act(Report{std::move(event)});
}

// ---- The policy.

void AgentMachine::on(const RendezvousReady& event) {
  is_reached_ = true;
  hosts_coordinator_ = event.hosts_coordinator;
  report_findings();
  if (unfit_) return report_unfit();
  ready_ = event;
  if (!options_.template_limit) return join();
  join_at_ = add_saturating(now_, *options_.template_limit);
  act(agent_action::AwaitTemplate{});
}

void AgentMachine::on(const RendezvousLost& event) {
  decide(event);
  end_round();
}

// Kept workers wait for the workers of a joining node, so the node joins when it can fork them.
void AgentMachine::join() {
  if (join_at_ || checks_.holds_join()) return;
  if (const auto ready = std::exchange(ready_, std::nullopt)) {
    has_joined_ = true;
    decide(*ready);
  }
}

void AgentMachine::open_store() {
  port_at_.reset();
  act(agent_action::OpenStore{});
}

void AgentMachine::follow(Send action) {
  unsent_join_.reset();
  port_at_.reset();
  auto* const join = std::get_if<rdzv::Join>(&action.statement);
  if (join == nullptr) return act(std::move(action));
  unsent_join_ = std::move(*join);
  const bool has_processes = policy_.has_processes();
  snapshot::NodeSnapshots::Out actions;
  snapshots_.join(has_processes, &actions);
  apply_all(std::move(actions));
  NodeInfo& node = unsent_join_->node;
  node.held = snapshots_.holdings(has_processes);
  if (!has_processes) node.copies_address = snapshots_.copies_address();
  port_limit_ = now_ + kPortLimit;
  open_store();
}

// Without a free descriptor a later attempt may succeed. Also the job may have failed for good
// meanwhile: then its result is reported, and not that this node cannot take part in another round.
void AgentMachine::on(const agent_event::StoreOpened& event) {
  if (!unsent_join_) return;
  if (event.port.ok()) {
    unsent_join_->node.store_port = *event.port;
    return act(Send{*std::exchange(unsent_join_, std::nullopt)});
  }
  const bool is_exhausted = event.port.status().code() == StatusCode::kResourceExhausted;
  if (is_exhausted && now_ < port_limit_) {
    port_at_ = now_ + kPortPause;
    return;
  }
  unsent_join_.reset();
  on(LocalFault{is_exhausted ? kExitSupervisionLost : kExitCannotServe,
                std::string(event.port.status().message())});
}

void AgentMachine::on(const WorkerStarted& event) {
  const auto index = static_cast<std::size_t>(event.local_rank);
  if (index < has_started_.size()) has_started_[index] = true;
  decide(event);
}

void AgentMachine::on(const WorkerExited& event) {
  if (notice_.is_of_notice(event.exit)) return end_by_notice(event);
  note_exit(event);
  decide(event);
  const bool is_own_stop = event.exit.stop_step >= 0 && event.exit.verdict.empty();
  const bool is_failure = !event.exit.succeeded() && !event.exit.stopped_by_us && !is_own_stop;
  if (is_failure) feed(node_event::WorkerFailed{});
}

void AgentMachine::note_exit(const WorkerExited& event) {
  feed(node_event::WorkerEnded{event.local_rank, event.exit});
  const auto index = static_cast<std::size_t>(event.local_rank);
  if (index < has_ended_.size()) has_ended_[index] = true;
  note_cause(event);
  if (event.exit.succeeded()) return note_finished(event);
  if (!event.exit.stopped_by_us) is_stop_for_failure_ = true;
}

// The time of the other ranks begins with the first one that exits with 0, unless it was told to.
void AgentMachine::note_finished(const WorkerExited& event) {
  const bool was_told = event.exit.stopped_by_us || event.exit.stop_step >= 0;
  const auto index = static_cast<std::size_t>(event.local_rank);
  const bool is_limited = options_.policy.agent.straggler_timeout > Duration::zero();
  if (!is_limited || was_told || round_ == nullptr || index >= round_->workers.size()) return;
  if (std::exchange(has_sent_finish_, true)) return;
  act(agent_action::Observe{hang::RankFinished{.round = round_->round,
                                               .rank = round_->workers[index].rank,
                                               .limit = options_.policy.agent.straggler_timeout}});
}

void AgentMachine::on(const rdzv::Restart& event) {
  if (event.cause == rdzv::RestartCause::kWorkerFailed) is_stop_for_failure_ = true;
  if (is_departure(event.cause)) is_stop_for_loss_ = true;
  decide(event);
}

void AgentMachine::on(const rdzv::Closed& event) {
  if (event.result->cause == JobCause::kWorker) is_stop_for_failure_ = true;
  if (event.result->cause == JobCause::kNodeLost) is_stop_for_loss_ = true;
  decide(event);
  drop_questions();
}

void AgentMachine::on(const StopRequested& event) {
  if (is_finished_) shutdown_at_ = now_;
  decide(event);
  drop_questions();
}

// Its notice has no effect at the coordinator.
void AgentMachine::on(const rdzv::Evicted& event) {
  const bool has_left = policy_.state() == AgentState::kStopped;
  if (event.is_displaced) snapshots_.note_displaced();
  if (notice_.is_waiting() && !has_left) give_up_drain(kNoStepWithoutJob);
  decide(event);
  drop_questions();
}

void AgentMachine::follow(std::vector<PolicyAction> decided) {
  for (PolicyAction& action : decided) {
    std::visit([this](auto& one) { follow(std::move(one)); }, action);
  }
  leave_if_done();
}

void AgentMachine::follow(PrepareGroup action) {
  const auto workers = static_cast<std::size_t>(options_.policy.node.local_world_size);
  has_started_.assign(workers, false);
  has_ended_.assign(workers, false);
  is_opening_files_ = true;
  are_files_open_ = false;
  snapshots_.end_fetch();
  act(action);
}

void AgentMachine::follow(StartGroup action) {
  has_started_.assign(action.round->workers.size(), false);
  has_ended_.assign(action.round->workers.size(), false);
  begin_round(action.round);
  snapshot::NodeSnapshots::Out before, after;
  snapshots_.plan(&before);
  apply_all(std::move(before));
  is_opening_files_ = true;
  are_files_open_ = false;
  act(std::move(action));
  snapshots_.fetch(&after);
  apply_all(std::move(after));
}

void AgentMachine::on(const agent_event::SnapshotsFetched& event) {
  if (!snapshots_.end_fetch() || !is_opening_files_) return;
  if (!event.status.ok()) return abandon_start(std::string(event.status.message()));
  start_workers();
}

// The round ends for all nodes, without a charge, and the next one continues from another step.
void AgentMachine::abandon_start(const std::string& why) {
  report(AgentEvent::Kind::kNotice, snapshots_.give_up(why));
  report(AgentEvent::Kind::kRoundStarting, "");  // every round of this node is reported
  is_opening_files_ = false;
  is_abandoning_ = true;
  act(agent_action::CancelStart{});
}

void AgentMachine::on(const agent_event::FilesOpened& event) {
  if (!std::exchange(is_opening_files_, false)) return;
  if (!event.status.ok()) {
    return on(LocalFault{kExitCannotLog, std::string(event.status.message())});
  }
  are_files_open_ = true;
  is_opening_files_ = true;
  start_workers();
}

void AgentMachine::start_workers() {
  if (!are_files_open_ || snapshots_.is_fetching()) return;
  is_opening_files_ = false;
  snapshots_.workers_start();
  act(agent_action::StartWorkers{});
  probe_store();
}

// Reports to the policy that the workers ended, although none was started.
void AgentMachine::on(const agent_event::StartCancelled&) {
  if (is_finished_) return;
  if (std::exchange(is_abandoning_, false)) return decide(StartAbandoned{});
  WorkerExit exit;
  exit.stopped_by_us = true;
  exit.at = now_;
  for (int i = 0; i < static_cast<int>(has_ended_.size()); ++i) {
    on(WorkerExited{i, -1, exit});
  }
  on(GroupGone{});
}

void AgentMachine::follow(ContinueGroup action) {
  begin_round(action.round);
  for (std::size_t i = 0; i < has_ended_.size(); ++i) {
    if (has_ended_[i]) give(&drain_, node_event::WorkerEnded{static_cast<int>(i), {}});
  }
  act(std::move(action));
  const bool has_workers =
      std::find(has_ended_.begin(), has_ended_.end(), false) != has_ended_.end();
  if (has_workers) probe_store();
}

void AgentMachine::begin_round(std::shared_ptr<const RoundInfo> round) {
  round_ = std::move(round);
  feed(node_event::RoundBegan{round_});
  killed_.clear();
  stall_.clear();
  is_examined_ = false;
  has_sent_finish_ = is_stop_for_failure_ = is_stop_for_loss_ = false;
  may_hold_stop_ = options_.policy.agent.stacks_on_failure;
}

// ---- The stop of the workers, before which their stacks may be wanted.

void AgentMachine::follow(StopGroup action) {
  held_stop_ = action;
  const bool has_cause = is_stop_for_failure_ || is_stop_for_loss_;
  const bool may_hold = std::exchange(may_hold_stop_, false) && has_cause;
  if (!may_hold || is_opening_files_) return release_stop();
  held_until_ = add_saturating(now_, kHeldStopLimit);
  act(agent_action::CollectStacks{});
}

void AgentMachine::on(const agent_event::StacksCollected& event) {
  if (!held_stop_) return;
  if (event.any) {
    act(agent_action::WriteStacks{"stacks before the stop after a failure, in round " +
                                  std::to_string(shown_round(round_->round))});
  }
  release_stop();
}

void AgentMachine::release_stop() {
  held_until_.reset();
  const auto stop = std::exchange(held_stop_, std::nullopt);
  if (!stop) return;
  if (!std::exchange(is_opening_files_, false)) {
    return act(agent_action::StopWorkers{*stop, is_stop_for_failure_});
  }
  // Every round of this node is reported.
  if (round_ != nullptr) report(AgentEvent::Kind::kRoundStarting, "");
  act(agent_action::CancelStart{});
}

void AgentMachine::on(const agent_event::ProcessesEnded&) {
  held_stop_.reset();  // nothing is left to stop
  held_until_.reset();
  examined_until_ = now_ + kExaminationTimeout;
}

void AgentMachine::end_examination() {
  act(agent_action::EndExamination{});
  on(agent_event::FailuresExamined{});
}

// The round is not over here before its failures are explained: the job's result may follow.
void AgentMachine::on(const agent_event::FailuresExamined&) {
  if (!std::exchange(examined_until_, std::nullopt)) return;
  is_examined_ = true;
  end_examined_round();
}

// ---- Verdicts about a worker.

void AgentMachine::on(const hang::Verdict& verdict) {
  if (round_ == nullptr || verdict.round != round_->round) return;
  using Kind = hang::Verdict::Kind;
  switch (verdict.kind) {
    case Kind::kHang:
      report(AgentEvent::Kind::kHang, verdict.text);
      if (options_.keeps_stacks) act(agent_action::WriteStacks{verdict.text});
      break;
    case Kind::kStraggling: report(AgentEvent::Kind::kStraggling, verdict.text); break;
    case Kind::kStalled:
      report(AgentEvent::Kind::kStalled, verdict.text);
      stall_ = verdict.text;
      break;
    case Kind::kStallOver:
      report(AgentEvent::Kind::kStallOver, verdict.text);
      stall_.clear();
      break;
    case Kind::kMismatch: report(AgentEvent::Kind::kMismatch, verdict.text); break;
    case Kind::kNoted: stall_ = verdict.text; break;
  }
  if (verdict.action == HangAction::kReport) return;
  may_hold_stop_ = false;  // the stacks of this failure are known
  // Without a suspect the job ends by rank 0, which runs then: some worker must fail.
  const int rank = std::max(verdict.suspect, 0);
  for (const WorkerAssignment& worker : round_->workers) {
    if (worker.rank != rank) continue;
    kill(worker.local_rank, verdict.cause, verdict.action == HangAction::kFail, false);
  }
}

void AgentMachine::probe_store() {
  const bool is_tested =
      round_ != nullptr && options_.policy.agent.reach_timeout > Duration::zero() &&
      (options_.endpoint_port == 0 || round_->master_port != options_.endpoint_port);
  if (!is_tested) return;
  const bool is_own = round_->group_rank == 0;
  act(agent_action::ProbeStore{is_own
                                   ? std::min(options_.policy.agent.reach_timeout, kOwnReachTimeout)
                                   : options_.policy.agent.reach_timeout});
}

// The workers find out themselves with the timeout of their process group, after minutes, and do
// not name the hosts. Those of rank 0 may need no process group.
void AgentMachine::on(const agent_event::StoreUnreachable& event) {
  if (is_finished_) return;
  if (round_->group_rank == 0) {
    return report(AgentEvent::Kind::kNotice,
                  options_.host_name +
                      " does not reach the workers' store, which is on this "
                      "host (is its interface up?): " +
                      event.why);
  }
  for (std::size_t i = 0; i < has_started_.size(); ++i) {
    if (!has_started_[i] || has_ended_[i]) continue;
    std::string why = options_.host_name;
    why += " does not reach the workers' store of the round on the node of rank 0: " + event.why;
    return kill(static_cast<int>(i), std::move(why), false, true);
  }
}

void AgentMachine::kill(int local_rank, std::string verdict, bool ends_job, bool is_unreachable) {
  killed_.push_back({local_rank, std::move(verdict), ends_job, is_unreachable});
  act(agent_action::KillWorker{local_rank});
}

WorkerExit AgentMachine::explain(int local_rank, WorkerExit exit) const {
  const auto found = std::find_if(killed_.begin(), killed_.end(),
                                  [&](const Killed& one) { return one.local_rank == local_rank; });
  if (found == killed_.end() || exit.signal != SIGKILL) return exit;
  exit.verdict = found->verdict;
  exit.ends_job = found->ends_job;
  exit.is_unreachable = found->is_unreachable;
  return exit;
}

WorkerExited AgentMachine::explain(WorkerExited failed) const {
  if (failed.evidence.hint.empty() && !stall_.empty()) {
    failed.evidence.hint = "before this failure the job had stalled: " + stall_;
  }
  return failed;
}

// ---- The end.

void AgentMachine::follow(Finish action) {
  unsent_join_.reset();
  port_at_.reset();
  is_finished_ = true;
  end_checks();
  if (std::exchange(is_opening_files_, false)) act(agent_action::CancelStart{});
  ends_job_ = action.result.job.has_value();
  act(std::move(action));
}

void AgentMachine::on(const agent_event::ResultFixed& event) {
  shutdown_at_ = now_;
  // Workers on other nodes may use our store until the last one has ended.
  if (!ends_job_ || !event.serves_store || round_->group_world_size < 2) return;
  report(AgentEvent::Kind::kProgress,
         "keeping the round's store until the workers of the other nodes are gone");
  shutdown_at_ = add_saturating(now_, shutdown_limit());
}

void AgentMachine::on(const rdzv::RoundOver& event) {
  if (round_ != nullptr && event.round == round_->round) end_round();
}

// The workers of all nodes have ended, or no further messages about them can arrive.
void AgentMachine::end_round() {
  act(agent_action::EndRound{});
  if (is_finished_ && !is_flushing_) shutdown_at_ = now_;
}

// After the job ended: the time in which all other nodes stop their workers or are evicted.
Duration AgentMachine::shutdown_limit() const {
  return std::min<Duration>(options_.policy.agent.stop_grace, std::chrono::hours(1)) + kStopMargin;
}

void AgentMachine::shut_down() {
  shutdown_at_.reset();
  if (!std::exchange(is_flushing_, true)) {
    act(agent_action::Flush{ends_job_ ? shutdown_limit() : kLeaveLimit,
                            policy_.state() == AgentState::kUnknown});
  } else if (!std::exchange(is_closed_, true)) {
    act(agent_action::Close{});
  }
}

}  // namespace elastic::core
