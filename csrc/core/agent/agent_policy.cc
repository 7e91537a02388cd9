#include <algorithm>
#include <csignal>
#include <utility>

#include "core/agent/agent_policy.h"
#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/rendezvous/first_failure.h"
#include "core/rendezvous/rank_assign.h"
#include "elastic/observer.h"

// Theory of operation. The states are those that torch's agent names, described at AgentState.
//
// read() turns an event into an input of the table, given the policy's data: was that exit a
// failure, is the round already known? The pair of state and input selects one row of the table,
// which names the step to execute and the next state. All decisions are in those two places
// (agent_policy_decisions.cc); the steps only update data, append actions, and raise inputs, which
// go through the table like the others. A pair without a row ends in UNKNOWN: the sender and this
// agent disagree about the state, and the workers must not keep running.
//
// The rendezvous decides about the job. A node whose worker failed reports the failure and keeps
// its other workers running until the reply arrives: an order to stop and join again, or the result
// of the job. A node whose workers are done waits in the same way, at the exit barrier. The agent
// makes only three decisions itself: it leaves after a stop request; it ends the job when a program
// cannot be executed, since that would fail in every round; and it stops the remaining workers of a
// failed group when no reply arrives.
//
// Workers can be kept for another round, or started before this node joins: agent_kept.cc.
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

// Why workers are stopped when the job has ended.
StopReason reason_of(const JobResult& job, const std::string& what) {
  if (job.cause == JobCause::kWorker) {
    return worker_stop_reason(job.rank, job.node, job.exit_code, job.evidence, what);
  }
  StopReason why{.cause = StopCause::kJobEnded, .text = what};
  if (job.cause == JobCause::kNodeLost) {
    why.cause = job.exit_code == 0            ? StopCause::kNodeLost
                : job.exit_code > kSignalBase ? StopCause::kPreempted
                                              : StopCause::kNodeLeft;
    why.node = job.node;
    if (job.exit_code == 0) why.failure_class = FailureClass::kInfrastructure;
  }
  return why;
}

// `rule`: a rule with what it does, or its name alone.
std::string decided_by(const std::string& rule) {
  return rule.find(" excludes host ") == rule.npos ? "as " + rule + " decides" : rule;
}

}  // namespace

// The steps add inputs, which are handled in order, before the next event is.
void AgentPolicy::run(PolicyInput input, Turn* turn) {
  if (input == PolicyInput::kTick) deadline_.reset();
  std::optional<WorkerExited> exited;
  for (std::size_t next = 0;; ++next) {
    const Edge& edge = edge_of(state_, input);
    turn->from = std::exchange(state_, edge.next);
    if (edge.run != nullptr) (this->*edge.run)(turn);
    if (next == turn->raised.size()) return;
    input = turn->raised[next].input;
    exited = std::move(turn->raised[next].exited);
    turn->exited = exited ? &*exited : nullptr;
  }
}

void AgentPolicy::report_progress(Turn* turn) {
  AgentEvent event = event_of(AgentEvent::Kind::kProgress, state(), turn->now);
  event.message = turn->progress->message;
  event.deadline = turn->progress->deadline;
  turn->act(Report{std::move(event)});
}

void AgentPolicy::join(Turn* turn) {
  participant_.locate(turn->ready->name, turn->ready->address);
  request_join(turn);
}

void AgentPolicy::join_ordered(Turn* turn) {
  follow_order(turn);
  request_join(turn);
}

void AgentPolicy::join_after_failure(Turn* turn) {
  const bool is_repeated = round_end_.ordered.has_value();
  follow_order(turn);
  if (!is_repeated) report_failure(turn);
  request_join(turn);
}

// A node whose workers have ended has nothing to stop, but logs why it joins again.
void AgentPolicy::join_when_done(Turn* turn) {
  turn->report(AgentEvent::Kind::kProgress, state(), "called back: " + follow_order(turn));
  request_join(turn);
}

void AgentPolicy::rejoin(Turn* turn) {
  round_end_.stopped = turn->now;
  request_join(turn);
}

void AgentPolicy::request_join(Turn* turn) {
  deadline_.reset();
  update(JoinRequested{}, turn);
}

void AgentPolicy::update(const ParticipantEvent& event, Turn* turn) {
  std::vector<NodeStatement> statements;
  participant_.step(event, &statements);
  for (NodeStatement& statement : statements) turn->act(Send{std::move(statement)});
}

void AgentPolicy::start_group(Turn* turn) {
  begin_round(turn);
  kept_.start(round_->workers.size());
  turn->act(StartGroup{round_});
}

void AgentPolicy::begin_round(Turn* turn) {
  const rdzv::Round& event = *turn->round;
  if (round_ != nullptr) {
    // Its evidence may have been found after the order.
    if (std::exchange(is_own_reason_, false)) end_reason_ = cause().describe();
    AgentEvent restarting = event_of(AgentEvent::Kind::kRestarting, AgentState::kInit, turn->now);
    restarting.message = end_reason_ + restart_text(*event.record, is_kept(turn->from));
    if (event.cause != nullptr && !event.cause->rule.empty()) {
      restarting.message += "; " + decided_by(event.cause->rule);
    }
    round_end_.failures = failures_;
    restarting.ended = std::exchange(round_end_, {});
    turn->act(Report{std::move(restarting)});
  }
  RoundInfo info = round_info(*event.record, event.own);
  if (event.cause != nullptr) info.cause = *event.cause;
  round_ = std::make_shared<const RoundInfo>(std::move(info));
  update(event, turn);
  update(WorkersStarted{}, turn);
  started_ = 0;
  ended_ = 0;
  stop_reason_ = {};
  end_streak();
  failures_.clear();
  stop_step_ = -1;
  round_began_ = turn->now;
}

// The message of the order, for the log. Records how the order affects the next join.
std::string AgentPolicy::follow_order(Turn* turn) {
  const Order& order = *turn->order;
  update(order.event, turn);
  if (!round_end_.ordered) {
    round_end_.cause = order.cause;
    round_end_.ordered = turn->now;
  }
  stop_reason_ = order.why;
  is_own_reason_ = !failures_.empty();
  end_reason_ = is_own_reason_ ? cause().describe() : order.reason;
  return order.reason;
}

// This node has no worker left to stop: the failure is logged before the other nodes have stopped
// theirs.
void AgentPolicy::report_failure(Turn* turn) {
  if (failures_.empty() || !all_ended() || round_->group_world_size < 2) return;
  turn->report(AgentEvent::Kind::kStopping, state(),
               end_reason_ + "; the other nodes stop their workers");
}

void AgentPolicy::stop_workers(Turn* turn) {
  const bool is_repeated = round_end_.ordered.has_value();
  const std::string reason = follow_order(turn);
  if (!is_repeated) report_failure(turn);
  deadline_.reset();
  stop_group(turn->order->grace ? without_cut(*turn->order->grace) : failure_grace(),
             failures_.empty() ? reason + "; stopping the workers"
                               : end_reason_ + "; stopping the other workers",
             turn);
}

void AgentPolicy::stop_unordered(Turn* turn) {
  stop_reason_ = own_failure();
  stop_group(failure_grace(),
             cause().describe() + "; no answer from the coordinator; stopping the other workers",
             turn);
}

void AgentPolicy::end(Turn* turn) {
  const End& end = *turn->end;
  deadline_.reset();
  for (const ParticipantEvent& event : end.events) update(event, turn);
  Duration grace = end.follows_failure ? failure_grace() : stop_grace();
  if (end.job != nullptr) {
    set_result(*end.job);
    if (end.job->outcome == JobOutcome::kFailed) grace = failure_grace();
  } else {
    result_.exit_code = end.exit_code;
    result_.message = end.message;
    follows_job_ = end.follows_job;
  }
  const bool is_unstarted = end.is_unstarted && !is_kept(turn->from);
  if (is_unstarted || !has_processes(turn->from)) return turn->raise(PolicyInput::kOver);
  const std::string why = result_.message.empty() ? "the job is over" : result_.message;
  if (is_stopping(turn->from)) turn->report(AgentEvent::Kind::kProgress, state(), why);
  stop_reason_ =
      end.job != nullptr ? reason_of(*end.job, why) : StopReason{.cause = end.why, .text = why};
  stop_group(grace, why + "; stopping the workers", turn);
}

// The job's result as this node reports it: with its own message if the cause was on this node.
void AgentPolicy::set_result(const JobResult& job) {
  result_.job = job;
  result_.exit_code = exit_code_of(job);
  if (job.outcome == JobOutcome::kSucceeded) {
    if (!job.lost.empty()) result_.message = job.message;
    if (stop_step_ >= 0) set_stopped_at_step();
    return;
  }
  result_.message = job.message;
  if (job.cause != JobCause::kWorker || job.node_id != self().id || failures_.empty()) return;
  const WorkerFailure& failure = cause();
  if (failure.rank != job.rank) return;
  result_.is_cause = true;
  result_.message = failure.describe();
  // With a policy the part that decided follows in the job's message, unless more is known by now.
  const std::string known = describe_worker(failure.rank, self().name, failure.message);
  if (has_policy(settings_) && job.message.starts_with(known)) {
    result_.message += job.message.substr(known.size());
  } else if (const char* final = why_final(failure)) {
    result_.message += final;
  } else if (settings_.max_restarts > 0) {
    result_.message +=
        "; " + RestartBudget{settings_.max_restarts, settings_.max_restarts}.describe_spent();
  }
}

// Workers that have exited with 0 because they were told to stop have not finished their work. A
// coordinator that does not know this, because it follows a lost one, reports success.
void AgentPolicy::set_stopped_at_step() {
  result_.exit_code = kExitStoppedAtStep;
  result_.message = "stopped at step " + std::to_string(stop_step_) + ", resumable";
}

void AgentPolicy::count_started(Turn* turn) {
  const WorkerStarted& event = *turn->started;
  ++started_;
  AgentEvent report = event_of(AgentEvent::Kind::kWorkerStarted, state(), event.at);
  report.local_rank = event.local_rank;
  report.pid = event.pid;
  turn->act(Report{std::move(report)});
  if (state_ == PolicyState::kHealthy && started_ == round_->workers.size()) {
    turn->act(Report{event_of(AgentEvent::Kind::kWorkersRunning, state(), event.at)});
  }
}

void AgentPolicy::count_exit(Turn* turn) { count_one_exit(*turn->exited, turn); }

void AgentPolicy::count_one_exit(const WorkerExited& event, Turn* turn) {
  ++ended_;
  if (round_ == nullptr) return;
  if (event.exit.succeeded() || has_stopped_at_step(event.exit)) {
    stop_step_ = std::max(stop_step_, event.exit.stop_step);
  }
  AgentEvent report = event_of(AgentEvent::Kind::kWorkerExited, state(), event.exit.at);
  report.local_rank = event.local_rank;
  report.pid = event.pid;
  report.exit = event.exit;
  turn->act(Report{std::move(report)});
  if (turn->from == PolicyState::kCutting) {
    abandon_cut("a worker ended when it was to leave the round", turn);
  }
  if (event.exit.succeeded() || !has_stopped_at_step(event.exit)) return;
  const auto& worker = round_->workers.at(static_cast<std::size_t>(event.local_rank));
  const std::string what = describe_worker(worker.rank, event.exit.describe());
  turn->report(AgentEvent::Kind::kNotice, state(),
               what + " after it had stopped at step " + std::to_string(event.exit.stop_step) +
                   ": no restart follows; check what it saved");
  note_failed_leave(state_, what, event.exit.shell_code());
}

// It has left at a step, and success would say that its workers have saved what they needed to.
void AgentPolicy::note_failed_leave(PolicyState state, const std::string& what, int exit_code) {
  if (state != PolicyState::kStopped || result_.exit_code != 0) return;
  result_.exit_code = exit_code;
  result_.message += "; then " + what;
}

// It was told to stop at the agreed step and has passed all others: its end is no failure of the
// round. A worker that is killed by the verdict of a hang is.
bool AgentPolicy::has_stopped_at_step(const WorkerExit& exit) {
  return exit.stop_step >= 0 && !exit.stopped_by_us && exit.verdict.empty();
}

void AgentPolicy::send_done(Turn* turn) {
  round_end_.stopped = turn->now;
  update(WorkersSucceeded{}, turn);
  if (stop_requests_ > 0) {
    // The stop request followed the last worker's exit. Only success of the whole job is success.
    turn->signal = stop_signal_;
    const bool has_others = round_->group_world_size > 1;
    turn->raise(has_others ? PolicyInput::kStopRequested : PolicyInput::kBarrierOver);
  } else if (agent_.exit_barrier_timeout) {
    deadline_ = add_saturating(turn->now, *agent_.exit_barrier_timeout);
  }
}

void AgentPolicy::send_gone(Turn* turn) {
  round_end_.stopped = turn->now;
  deadline_.reset();
  update(WorkersGone{}, turn);
}

void AgentPolicy::stop_group(Duration grace, const std::string& why, Turn* turn) {
  const bool may_leave_processes = failures_.empty();
  if (!has_processes(turn->from) || (all_ended() && !may_leave_processes)) return;
  if (is_stopping(turn->from) || turn->has_sent_stop()) return;
  turn->act(StopGroup{SIGTERM, grace, stop_reason_});
  turn->raise(PolicyInput::kStopSent);
  if (all_ended()) return;  // it ends the wait for the processes that they left running
  turn->report(AgentEvent::Kind::kStopping, state(), why + ", which have " + duration_text(grace));
}

void AgentPolicy::leave(Turn* turn) {
  const std::string what = "stopped by " + signal_text(turn->signal);
  const bool has_workers = has_processes(turn->from);
  result_.exit_code = kSignalBase + turn->signal;
  result_.message = what;
  follows_job_ = true;
  if (!failures_.empty() && has_workers) {
    result_.message += "; before that " + cause().describe();
  }
  deadline_.reset();
  update(LeaveRequested{what, result_.exit_code}, turn);
  if (!has_workers) return turn->raise(PolicyInput::kOver);
  kill(turn);
}

void AgentPolicy::leave_done(Turn* turn) {
  update(LeaveRequested{stop_requests_ > 0
                            ? "asked to stop when its workers had succeeded"
                            : "its workers have succeeded and exit_barrier_timeout has expired"},
         turn);
  turn->raise(stop_step_ < 0 ? PolicyInput::kOver : PolicyInput::kOverAtStep);
}

void AgentPolicy::finish_done_at_step(Turn* turn) {
  set_stopped_at_step();
  turn->raise(PolicyInput::kOver);
}

// The others continue without it. Its workers stop by themselves, and save what they need to.
void AgentPolicy::leave_at_step(Turn* turn) {
  const std::int64_t step = turn->step;
  deadline_.reset();
  result_.exit_code = 0;
  result_.message = "left the job at step " + std::to_string(step) + ", as agreed";
  update(LeaveRequested{"at step " + std::to_string(step) + ", as agreed"}, turn);
}

void AgentPolicy::kill(Turn* turn) {
  const int signal = turn->signal;
  ++stop_requests_;
  stop_signal_ = signal;
  // It has left at a step, and its workers are not let to end by themselves.
  if (state_ == PolicyState::kStopped && result_.exit_code == 0) {
    result_.exit_code = kSignalBase + signal;
    result_.message += "; then its workers were stopped by " + signal_text(signal);
  }
  const Duration grace =
      stop_requests_ > 1 ? std::min(stop_grace(), kRepeatedStopGrace) : stop_grace();
  const bool at_once = stop_requests_ > 2 || (stop_requests_ == 2 && grace == stop_grace());
  turn->act(StopGroup{at_once ? SIGKILL : signal,
                      at_once ? Duration::zero() : grace,
                      {.cause = StopCause::kPreempted,
                       .node = self().name,
                       .text = "stopped by " + signal_text(signal)}});
  turn->report(AgentEvent::Kind::kStopping, state(),
               "asked to stop by " + signal_text(signal) + (stop_requests_ > 1 ? " again" : "") +
                   (at_once ? "; killing the workers"
                            : "; the workers have " + duration_text(grace) +
                                  (stop_requests_ > 1 ? " at most" : "")));
}

void AgentPolicy::lose(Turn* turn) {
  result_.exit_code = kExitSupervisionLost;
  result_.message = !turn->lost.empty()
                        ? turn->lost
                        : "a message of the rendezvous contradicts the state of the agent";
  update(LeaveRequested{result_.message, result_.exit_code}, turn);
  deliver(AgentState::kUnknown, turn);
}

void AgentPolicy::finish(Turn* turn) {
  if (!failures_.empty()) note_failed_leave(turn->from, cause().describe(), cause().exit_code);
  deliver(agent_state(turn->from), turn);
}

// All nodes of a job end with one code. The other ones have this result, and have not seen this
// node leave.
void AgentPolicy::adopt_job_code(Turn* turn) {
  const std::shared_ptr<const JobResult>& job = turn->end->job;
  if (job == nullptr || !std::exchange(follows_job_, false)) return;
  result_.exit_code = exit_code_of(*job);
  result_.message += job->outcome == JobOutcome::kSucceeded
                         ? "; the job had succeeded"
                         : "; the job had ended: " + job->message;
  if (turn->from == PolicyState::kFinished) {
    turn->act(CorrectResult{result_.exit_code, result_.message});
  }
}

void AgentPolicy::finish_gone(Turn* turn) {
  send_gone(turn);
  finish(turn);
}

void AgentPolicy::deliver(AgentState state, Turn* turn) {
  deadline_.reset();
  result_.state = state;
  result_.failures = std::move(failures_);
  turn->act(Finish{result_});
}

StopReason AgentPolicy::own_failure() const {
  const WorkerFailure& failure = cause();
  return worker_stop_reason(failure.rank, self().name, failure.exit_code, failure.evidence,
                            describe_worker(failure.rank, self().name, failure.message));
}

bool AgentPolicy::all_ended() const {
  return ended_ + kept_.num_exits() == static_cast<std::size_t>(self().local_world_size);
}

std::string AgentPolicy::restart_text(const RoundRecord& record, bool is_continued) const {
  std::string text = is_continued ? "; continuing" : "; restarting";
  if (record.nodes > 1 || round_->group_world_size > 1) {
    text += " with " + count_text(record.nodes, "node");
  }
  if (settings_.max_restarts > 0) {
    text += ", " + RestartBudget{record.restarts, settings_.max_restarts}.describe_left();
  }
  const bool is_input =
      !failures_.empty() && cause().evidence->failure_class == FailureClass::kUserInput;
  if (is_input) text += "; the command or the script looks wrong, so a restart may not help";
  return text;
}

}  // namespace core
}  // namespace elastic
