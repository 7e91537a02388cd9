#include <algorithm>
#include <csignal>
#include <utility>

#include "core/agent/agent_policy.h"
#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/rendezvous/rank_assign.h"
#include "elastic/observer.h"

// Theory of operation. The states are those that torch's agent names, described at AgentState.
//
// classify() turns an event into an input of the table, given the policy's data: was that exit a
// failure, is the round already known? The pair of state and input selects one entry of the table,
// which names the step to execute and the next state. All decisions are in those two places
// (agent_policy_decisions.cc); the steps only update data and append actions. A pair that cannot
// occur leads to UNKNOWN: the sender and this agent disagree about the state, and the workers must
// not keep running.
//
// The rendezvous decides about the job. A node whose worker failed reports the failure and keeps
// its other workers running until the reply arrives: an order to stop and join again, or the result
// of the job. A node whose workers are done waits in the same way, at the exit barrier. The agent
// makes only three decisions itself: it leaves after a stop request; it ends the job when a program
// cannot be executed, since that would fail in every round; and it stops the remaining workers of a
// failed group when no reply arrives.
//
// With an inplace_grace the workers of a round that is over are kept, if all of them are well and
// have declared that they can continue. They are told to leave their collectives (a cut), and this
// node joins the next round when the last one has left: for the rendezvous their part in the round
// is over, as if they had ended. While they wait the state is INIT, and they are given the next
// round instead of being started. Any doubt on the way (one fails, or does not leave in time) ends
// in the usual stop. One that ends while it waits fails in the next round, unless it is the last:
// then that round starts new ones. If its code says that no restart follows, or that the node is
// bad, that does not wait for a round.
//
// With an inplace_prepare the workers are started before this node joins, so that no other node
// waits for their imports. When all of them wait for their first round they are a group that is
// kept, without a round before it, and the node joins. Any doubt on the way ends in a stop; then
// the node joins, and starts them with its round. No event of a worker is reported before the
// round: it has no rank.
//
// Otherwise only GroupGone ends a round here. The exit of every worker is not enough to start the
// next one: processes that they left behind may still hold a port or a device. The result is fixed
// when it is received, and reported when all processes have ended. Until then the failures of the
// round are collected; the one with the earliest evidence is the cause: a worker reports its error
// before it exits, and may be stopped in between. A cause that is earlier than the one that was
// reported, or about which more is known, is reported as well.
//
// The first stop request determines the outcome, unless it is already fixed. Otherwise it, and
// every later request, only sets the workers' grace period, which is 0 from the second one on.

namespace elastic {

namespace core {
namespace {

constexpr int kSignalBase = 128;  // a shell reports death by signal N as 128 + N

}  // namespace

void AgentPolicy::step(const PolicyEvent& event, Instant now, std::vector<PolicyAction>* out) {
  if (is_finished_) return;
  if (std::holds_alternative<PolicyTick>(event)) {
    if (!deadline_ || now < *deadline_) return;
    deadline_.reset();
  }
  if (std::holds_alternative<GroupGone>(event)) round_end_.stopped = now;
  const PolicyEdge& edge = edge_of(state_, classify(event));
  Context context{now, std::exchange(state_, edge.next), out};
  run(edge.step, event, &context);
}

void AgentPolicy::run(PolicyStep step, const PolicyEvent& event, Context* context) {
  switch (step) {
    case PolicyStep::kIgnore: break;
    case PolicyStep::kReport: report_progress(std::get<Progress>(event), context); break;
    case PolicyStep::kJoin: join(event, context); break;
    case PolicyStep::kPrepareGroup: prepare_group(std::get<RendezvousReady>(event), context); break;
    case PolicyStep::kJoinPrepared: join_prepared(context); break;
    case PolicyStep::kNotePreparedExit:
      note_prepared_exit(std::get<WorkerExited>(event), context);
      break;
    case PolicyStep::kAbandonPrepared:
      abandon_prepared("the workers did not wait for their round within " +
                           duration_text(*agent_.inplace_prepare),
                       context);
      break;
    case PolicyStep::kJoinUnprepared: join_unprepared(context); break;
    case PolicyStep::kStartGroup: start_group(std::get<rdzv::Round>(event), context); break;
    case PolicyStep::kContinueGroup: continue_group(std::get<rdzv::Round>(event), context); break;
    case PolicyStep::kCutWorkers: cut_workers(event, context); break;
    case PolicyStep::kAbandonCut:
      abandon_cut(
          "the workers did not leave the round within " + duration_text(*agent_.inplace_grace),
          context);
      break;
    case PolicyStep::kCountCapable:
      capable_.at(static_cast<std::size_t>(std::get<WorkerCapable>(event).local_rank)) = true;
      break;
    case PolicyStep::kCountLeft:
      left_.at(static_cast<std::size_t>(std::get<WorkerLeft>(event).local_rank)) = true;
      break;
    case PolicyStep::kKeepWorkers: keep_workers(context); break;
    case PolicyStep::kNoteKeptExit: note_kept_exit(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kDropKept: drop_kept(context); break;
    case PolicyStep::kStopWorkers: stop_workers(event, context); break;
    case PolicyStep::kEnd: end(event, context); break;
    case PolicyStep::kCountStarted: count_started(std::get<WorkerStarted>(event), context); break;
    case PolicyStep::kCountExit: count_exit(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kAddFailure: add_failure(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kLeaveBadNode: leave_bad_node(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kAddEvidence: add_evidence(std::get<FailureFound>(event), context); break;
    case PolicyStep::kSendDone: send_done(context); break;
    case PolicyStep::kSendGone: send_gone(context); break;
    case PolicyStep::kRejoin: request_join(context); break;
    case PolicyStep::kFinish:
      send_gone(context);
      finish(context);
      break;
    case PolicyStep::kLeave: leave(std::get<StopRequested>(event), context); break;
    case PolicyStep::kLeaveDone: leave_done(context); break;
    case PolicyStep::kLeaveAtStep: leave_at(std::get<LeaveAtStep>(event).step, context); break;
    case PolicyStep::kKill: kill(std::get<StopRequested>(event), context); break;
    case PolicyStep::kStopUnordered:
      stop_group(
          failure_grace(),
          cause().describe() + "; no answer from the coordinator; stopping the other workers",
          context);
      break;
    case PolicyStep::kLose: lose(event, context); break;
  }
}

void AgentPolicy::report_progress(const Progress& progress, Context* context) {
  AgentEvent event = event_of(AgentEvent::Kind::kProgress, state_, context->now);
  event.message = progress.message;
  event.deadline = progress.deadline;
  context->act(Report{std::move(event)});
}

void AgentPolicy::join(const PolicyEvent& event, Context* context) {
  if (const auto* found = std::get_if<RendezvousReady>(&event)) {
    participant_.locate(found->name, found->address);
  } else {
    const bool is_repeated = round_end_.ordered.has_value();
    const std::string reason = order_reason(event, context);
    if (context->from == AgentState::kUnhealthy && !is_repeated) report_failure(context);
    // A node whose workers have ended has nothing to stop, but logs why it joins again.
    if (context->from == AgentState::kSucceeded) {
      context->report(AgentEvent::Kind::kProgress, state_, "called back: " + reason);
    }
  }
  request_join(context);
}

void AgentPolicy::request_join(Context* context) {
  deadline_.reset();
  update(JoinRequested{}, context);
}

void AgentPolicy::update(const ParticipantEvent& event, Context* context) {
  std::vector<NodeStatement> statements;
  participant_.step(event, &statements);
  for (NodeStatement& statement : statements) context->act(Send{std::move(statement)});
}

void AgentPolicy::start_group(const rdzv::Round& event, Context* context) {
  begin_round(event, context);
  capable_.assign(round_->workers.size(), false);
  context->act(StartGroup{round_});
}

// Exits of workers that ended while they waited are failures of this round: no rank takes their
// place in it.
void AgentPolicy::continue_group(const rdzv::Round& event, Context* context) {
  const bool is_stopping = is_stopping_;
  begin_round(event, context);
  is_kept_ = false;
  is_stopping_ = is_stopping;
  context->act(ContinueGroup{round_, end_reason_});
  for (const WorkerExited& exited : std::exchange(kept_exits_, {})) {
    fail_kept(exited, context);
  }
}

void AgentPolicy::begin_round(const rdzv::Round& event, Context* context) {
  if (round_ != nullptr) {
    // Its evidence may have been found after the order.
    if (std::exchange(is_own_reason_, false)) end_reason_ = cause().describe();
    AgentEvent restarting =
        event_of(AgentEvent::Kind::kRestarting, AgentState::kInit, context->now);
    restarting.message = end_reason_ + restart_text(*event.record);
    round_end_.failures = failures_;
    restarting.ended = std::exchange(round_end_, {});
    context->act(Report{std::move(restarting)});
  }
  round_ = std::make_shared<const RoundInfo>(round_info(*event.record, event.own));
  update(event, context);
  update(WorkersStarted{}, context);
  is_stopping_ = false;
  started_ = 0;
  ended_ = 0;
  end_streak();
  failures_.clear();
  stop_step_ = -1;
  round_began_ = context->now;
}

// The message of the order, for the log. Records how the order affects the next join.
std::string AgentPolicy::order_reason(const PolicyEvent& event, Context* context) {
  std::string reason;
  if (const auto* restart = std::get_if<rdzv::Restart>(&event)) {
    update(*restart, context);
    reason = restart->reason;
    if (!round_end_.ordered) round_end_.cause = to_string(restart->cause);
  } else {
    const auto& evicted = std::get<rdzv::Evicted>(event);
    update(evicted, context);
    reason = "the other nodes continued without this node: " + evicted.reason;
    if (!round_end_.ordered) round_end_.cause = "evicted";
  }
  if (!round_end_.ordered) round_end_.ordered = context->now;
  is_own_reason_ = !failures_.empty();
  end_reason_ = is_own_reason_ ? cause().describe() : reason;
  return reason;
}

// This node has no worker left to stop: the failure is logged before the other nodes have stopped
// theirs.
void AgentPolicy::report_failure(Context* context) {
  if (failures_.empty() || !all_ended() || round_->group_world_size < 2) return;
  context->report(AgentEvent::Kind::kStopping, state_,
                  end_reason_ + "; the other nodes stop their workers");
}

void AgentPolicy::stop_workers(const PolicyEvent& event, Context* context) {
  const auto* restart = std::get_if<rdzv::Restart>(&event);
  const bool is_repeated = round_end_.ordered.has_value();
  const std::string reason = order_reason(event, context);
  if (!is_repeated) report_failure(context);
  deadline_.reset();
  is_cutting_ = false;
  stop_group(restart != nullptr ? without_cut(restart->grace) : failure_grace(),
             failures_.empty() ? reason + "; stopping the workers"
                               : end_reason_ + "; stopping the other workers",
             context);
}

bool AgentPolicy::can_cut() const {
  const bool is_whole = participant_.state() == ParticipantState::kWorking && failures_.empty() &&
                        ended_ == 0 && !is_stopping_;
  return agent_.inplace_grace && is_whole &&
         std::find(capable_.begin(), capable_.end(), false) == capable_.end();
}

void AgentPolicy::cut_workers(const PolicyEvent& event, Context* context) {
  const std::string reason = order_reason(event, context);
  if (std::exchange(is_cutting_, true)) return;
  cut_grace_ = without_cut(std::get<rdzv::Restart>(event).grace);
  left_.assign(round_->workers.size(), false);
  deadline_ = add_saturating(context->now, *agent_.inplace_grace);
  context->act(CutGroup{round_->round});
  context->report(AgentEvent::Kind::kStopping, state_,
                  reason + "; keeping the workers, which have " +
                      duration_text(*agent_.inplace_grace) + " to leave the round");
}

void AgentPolicy::abandon_cut(const std::string& why, Context* context) {
  is_cutting_ = false;
  deadline_.reset();
  stop_group(cut_grace_, why + "; stopping them", context);
}

// The order to join again is known: it caused the cut.
void AgentPolicy::keep_workers(Context* context) {
  is_cutting_ = false;
  is_kept_ = round_end_.kept = true;
  round_end_.stopped = context->now;
  request_join(context);
}

// One kept worker has ended, so the others are stopped; the next round starts new workers.
void AgentPolicy::note_kept_exit(const WorkerExited& event, Context* context) {
  kept_exits_.push_back(event);
  if (round_ != nullptr && failures_.empty() && is_failure(event.exit)) {
    WorkerFailure failure = kept_failure_of(event);
    if (why_final(failure) != nullptr) {
      send_failure(failure, context);
      insert_failure(std::move(failure));
    }
  }
  stop_group(failure_grace(), "a worker ended while it waited for the next round; stopping them",
             context);
}

void AgentPolicy::drop_kept(Context* context) {
  for (const WorkerExited& exited : std::exchange(kept_exits_, {})) count_exit(exited, context);
  is_kept_ = round_end_.kept = false;
  context->report(AgentEvent::Kind::kNotice, state_,
                  "the workers ended while they waited for the next round, which starts new ones");
}

void AgentPolicy::end(const PolicyEvent& event, Context* context) {
  is_cutting_ = false;
  deadline_.reset();
  Duration grace = stop_grace();
  if (const auto* closed = std::get_if<rdzv::Closed>(&event)) {
    update(*closed, context);
    set_result(*closed->result);
    if (closed->result->outcome == JobOutcome::kFailed) grace = failure_grace();
    if (result_.exit_code == kExitStoppedAtStep) state_ = AgentState::kStopped;
  } else if (const auto* fault = std::get_if<LocalFault>(&event)) {
    result_.exit_code = fault->exit_code;
    result_.message = fault->message;
    update(LeaveRequested{fault->message}, context);
    update(WorkersGone{}, context);
    is_preparing_ = false;  // none was started
  } else if (const auto* lost = std::get_if<RendezvousLost>(&event)) {
    result_.exit_code = lost->exit_code;
    result_.message = lost->message;
    update(RendezvousUnreachable{}, context);
  } else if (const auto* refused = std::get_if<rdzv::Refused>(&event)) {
    // There may be room for this node later.
    const bool is_full = refused->error.code() == StatusCode::kResourceExhausted;
    result_.exit_code = is_full ? kExitJoinTimedOut : kExitRejected;
    result_.message = std::string(refused->error.message());
    update(*refused, context);
  } else {
    const auto& timed_out = std::get<rdzv::TimedOut>(event);
    result_.exit_code = kExitJoinTimedOut;
    result_.message = timed_out.message;
    update(timed_out, context);
  }
  if (!has_processes()) {
    finish(context);
    return;
  }
  const std::string why = result_.message.empty() ? "the job is over" : result_.message;
  if (is_stopping_) context->report(AgentEvent::Kind::kProgress, state_, why);
  stop_group(grace, why + "; stopping the workers", context);
}

// The job's result as this node reports it: with its own message if the cause was on this node.
void AgentPolicy::set_result(const JobResult& job) {
  result_.job = job;
  result_.exit_code = exit_code_of(job);
  if (job.outcome == JobOutcome::kSucceeded) {
    if (!job.lost.empty()) result_.message = job.message;
    set_stopped();
    return;
  }
  result_.message = job.message;
  if (job.cause != JobCause::kWorker || job.node != self().name || failures_.empty()) return;
  const WorkerFailure& failure = cause();
  if (failure.rank != job.rank) return;
  result_.message = failure.describe();
  if (const char* final = why_final(failure)) {
    result_.message += final;
  } else if (settings_.max_restarts > 0) {
    result_.message +=
        "; " + RestartBudget{settings_.max_restarts, settings_.max_restarts}.describe_spent();
  }
}

// Workers that have exited with 0 because they were told to stop have not finished their work. A
// coordinator that does not know this, because it follows a lost one, reports success.
void AgentPolicy::set_stopped() {
  if (stop_step_ < 0) return;
  state_ = AgentState::kStopped;
  result_.exit_code = kExitStoppedAtStep;
  result_.message = "stopped at step " + std::to_string(stop_step_) + ", resumable";
}

void AgentPolicy::count_started(const WorkerStarted& event, Context* context) {
  ++started_;
  AgentEvent report = event_of(AgentEvent::Kind::kWorkerStarted, state_, event.at);
  report.local_rank = event.local_rank;
  report.pid = event.pid;
  context->act(Report{std::move(report)});
  if (state_ == AgentState::kHealthy && started_ == round_->workers.size()) {
    context->act(Report{event_of(AgentEvent::Kind::kWorkersRunning, state_, event.at)});
  }
}

void AgentPolicy::count_exit(const WorkerExited& event, Context* context) {
  ++ended_;
  if (round_ == nullptr) return;
  if (event.exit.succeeded() || has_stopped_at_step(event.exit)) {
    stop_step_ = std::max(stop_step_, event.exit.stop_step);
  }
  AgentEvent report = event_of(AgentEvent::Kind::kWorkerExited, state_, event.exit.at);
  report.local_rank = event.local_rank;
  report.pid = event.pid;
  report.exit = event.exit;
  context->act(Report{std::move(report)});
  if (is_cutting_) {
    abandon_cut("a worker ended when it was to leave the round", context);
  }
  if (event.exit.succeeded() || !has_stopped_at_step(event.exit)) return;
  const auto& worker = round_->workers.at(static_cast<std::size_t>(event.local_rank));
  const std::string what = describe_worker(worker.rank, event.exit.describe());
  context->report(AgentEvent::Kind::kNotice, state_,
                  what + " after it had stopped at step " + std::to_string(event.exit.stop_step) +
                      ": no restart follows; check what it saved");
  note_failed_leave(what, event.exit.shell_code());
}

// It has left at a step, and success would say that its workers have saved what they needed to.
void AgentPolicy::note_failed_leave(const std::string& what, int exit_code) {
  if (state_ != AgentState::kStopped || result_.exit_code != 0) return;
  result_.exit_code = exit_code;
  result_.message += "; then " + what;
}

// It was told to stop at the agreed step and has passed all others: its end is no failure of the
// round. A worker that is killed by the verdict of a hang is.
bool AgentPolicy::has_stopped_at_step(const WorkerExit& exit) {
  return exit.stop_step >= 0 && !exit.stopped_by_us && exit.verdict.empty();
}

void AgentPolicy::send_done(Context* context) {
  update(WorkersSucceeded{}, context);
  if (stop_requests_ > 0 && round_->group_world_size > 1) {
    // The stop request followed the last worker's exit. Only success of the whole job is success.
    state_ = AgentState::kStopped;
    leave(StopRequested{stop_signal_}, context);
  } else if (stop_requests_ > 0) {
    leave_done(context);
  } else if (agent_.exit_barrier_timeout) {
    deadline_ = add_saturating(context->now, *agent_.exit_barrier_timeout);
  }
}

void AgentPolicy::send_gone(Context* context) {
  deadline_.reset();
  update(WorkersGone{}, context);
}

void AgentPolicy::stop_group(Duration grace, const std::string& why, Context* context) {
  const bool may_leave_processes = failures_.empty();
  if (!has_processes() || (all_ended() && !may_leave_processes)) return;
  if (std::exchange(is_stopping_, true)) return;
  context->act(StopGroup{SIGTERM, grace});
  if (all_ended()) return;  // it ends the wait for the processes that they left running
  context->report(AgentEvent::Kind::kStopping, state_,
                  why + ", which have " + duration_text(grace));
}

void AgentPolicy::leave(const StopRequested& event, Context* context) {
  const std::string what = "stopped by " + signal_text(event.signal);
  result_.exit_code = kSignalBase + event.signal;
  result_.message = what;
  if (!failures_.empty() && has_processes()) {
    result_.message += "; before that " + cause().describe();
  }
  deadline_.reset();
  update(LeaveRequested{what}, context);
  is_cutting_ = false;
  if (has_processes()) {
    is_stopping_ = true;
    kill(event, context);
  } else {
    finish(context);
  }
}

void AgentPolicy::leave_done(Context* context) {
  update(LeaveRequested{stop_requests_ > 0
                            ? "asked to stop when its workers had succeeded"
                            : "its workers have succeeded and exit_barrier_timeout has expired"},
         context);
  set_stopped();
  finish(context);
}

// The others continue without it. Its workers stop by themselves, and save what they need to.
void AgentPolicy::leave_at(std::int64_t step, Context* context) {
  deadline_.reset();
  result_.exit_code = 0;
  result_.message = "left the job at step " + std::to_string(step) + ", as agreed";
  update(LeaveRequested{"at step " + std::to_string(step) + ", as agreed"}, context);
}

void AgentPolicy::kill(const StopRequested& event, Context* context) {
  ++stop_requests_;
  stop_signal_ = event.signal;
  // It has left at a step, and its workers are not let to end by themselves.
  if (state_ == AgentState::kStopped && result_.exit_code == 0) {
    result_.exit_code = kSignalBase + event.signal;
    result_.message += "; then its workers were stopped by " + signal_text(event.signal);
  }
  const Duration grace =
      stop_requests_ > 1 ? std::min(stop_grace(), kRepeatedStopGrace) : stop_grace();
  const bool at_once = stop_requests_ > 2 || (stop_requests_ == 2 && grace == stop_grace());
  context->act(StopGroup{at_once ? SIGKILL : event.signal, at_once ? Duration::zero() : grace});
  context->report(AgentEvent::Kind::kStopping, state_,
                  "asked to stop by " + signal_text(event.signal) +
                      (stop_requests_ > 1 ? " again" : "") +
                      (at_once ? "; killing the workers"
                               : "; the workers have " + duration_text(grace) +
                                     (stop_requests_ > 1 ? " at most" : "")));
}

void AgentPolicy::lose(const PolicyEvent& event, Context* context) {
  const auto* lost = std::get_if<SupervisionLost>(&event);
  result_.exit_code = kExitSupervisionLost;
  result_.message = lost != nullptr
                        ? lost->message
                        : "a message of the rendezvous contradicts the state of the agent";
  update(LeaveRequested{result_.message}, context);
  finish(context);
}

void AgentPolicy::finish(Context* context) {
  if (!failures_.empty()) note_failed_leave(cause().describe(), cause().exit_code);
  is_finished_ = true;
  deadline_.reset();
  result_.state = state_;
  result_.failures = std::move(failures_);
  context->act(Finish{std::move(result_)});
}

bool AgentPolicy::all_ended() const {
  return ended_ + kept_exits_.size() == static_cast<std::size_t>(self().local_world_size);
}

std::string AgentPolicy::restart_text(const RoundRecord& record) const {
  std::string text = is_kept_ ? "; continuing" : "; restarting";
  if (record.nodes > 1 || round_->group_world_size > 1) {
    text += " with " + count_text(record.nodes, "node");
  }
  if (settings_.max_restarts > 0) {
    text += ", " + RestartBudget{record.restarts, settings_.max_restarts}.describe_left();
  }
  const bool is_input =
      !failures_.empty() && cause().evidence.failure_class == FailureClass::kUserInput;
  if (is_input) text += "; the command or the script looks wrong, so a restart may not help";
  return text;
}

// ---- The workers that are started before this node joins.

void AgentPolicy::prepare_group(const RendezvousReady& event, Context* context) {
  participant_.locate(event.name, event.address);
  is_preparing_ = true;
  const auto workers = static_cast<std::size_t>(self().local_world_size);
  capable_.assign(workers, true);  // only those wait for a round
  left_.assign(workers, false);
  deadline_ = add_saturating(context->now, *agent_.inplace_prepare);
  context->act(PrepareGroup{self()});
  report_progress({"starting the workers; this node joins when they wait for their round"},
                  context);
}

void AgentPolicy::join_prepared(Context* context) {
  is_preparing_ = false;
  is_kept_ = true;
  request_join(context);
}

void AgentPolicy::note_prepared_exit(const WorkerExited& event, Context* context) {
  kept_exits_.push_back(event);
  abandon_prepared("the worker of local rank " + std::to_string(event.local_rank) + " " +
                       event.exit.describe() + " before this node had joined",
                   context);
}

void AgentPolicy::abandon_prepared(const std::string& why, Context* context) {
  deadline_.reset();
  if (std::exchange(is_stopping_, true)) return;
  if (!all_ended()) context->act(StopGroup{SIGTERM, failure_grace()});
  context->report(AgentEvent::Kind::kNotice, state_,
                  why + "; the workers are started again with the round");
}

// What they were is forgotten: a failure that repeats is one of the round.
void AgentPolicy::join_unprepared(Context* context) {
  is_preparing_ = is_stopping_ = false;
  ended_ = 0;
  kept_exits_.clear();
  request_join(context);
}

}  // namespace core
}  // namespace elastic
