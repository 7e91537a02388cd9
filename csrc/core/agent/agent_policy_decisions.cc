// What the agent's policy decides: what an event means, given the policy's data, and which step and
// state follow; which of the failures of this node's workers is the cause, and what the rendezvous
// receives of it. agent_policy.cc has the theory of operation.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "core/agent/agent_policy.h"
#include "core/base/check.h"
#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/base/transitions.h"
#include "core/rendezvous/first_failure.h"
#include "elastic/observer.h"

namespace elastic {

const char* to_string(AgentState state) {
  switch (state) {
    case AgentState::kInit: return "INIT";
    case AgentState::kHealthy: return "HEALTHY";
    case AgentState::kUnhealthy: return "UNHEALTHY";
    case AgentState::kStopped: return "STOPPED";
    case AgentState::kSucceeded: return "SUCCEEDED";
    case AgentState::kFailed: return "FAILED";
    case AgentState::kUnknown: break;
  }
  return "UNKNOWN";
}

namespace core {

AgentState agent_state(PolicyState state) {
  switch (state) {
    case PolicyState::kInit:
    case PolicyState::kPreparing:
    case PolicyState::kUnprepared:
    case PolicyState::kWaiting:
    case PolicyState::kDropping: return AgentState::kInit;
    case PolicyState::kHealthy: return AgentState::kHealthy;
    case PolicyState::kUnhealthy:
    case PolicyState::kCutting:
    case PolicyState::kStopping: return AgentState::kUnhealthy;
    case PolicyState::kDone:
    case PolicyState::kSucceeded: return AgentState::kSucceeded;
    case PolicyState::kStopped: return AgentState::kStopped;
    case PolicyState::kFailed: return AgentState::kFailed;
    case PolicyState::kFinished: break;
  }
  return AgentState::kUnknown;
}

static_assert(static_cast<std::size_t>(PolicyState::kFinished) + 1 == kPolicyStates);
static_assert(static_cast<std::size_t>(PolicyInput::kOverAtStep) + 1 == kPolicyInputs);

// The policy's program. A pair of state and input without a row ends in UNKNOWN.
struct AgentPolicy::Table {
  using enum PolicyState;
  using enum PolicyInput;
  using P = AgentPolicy;
  using States = EnumSet<PolicyState>;
  using Inputs = EnumSet<PolicyInput>;
  using Row = Transition<PolicyState, PolicyInput, void (AgentPolicy::*)(Turn*)>;

  static constexpr States kAnyInit = {kInit, kPreparing, kUnprepared, kWaiting, kDropping};
  static constexpr States kAnyPrepared = {kPreparing, kUnprepared};
  static constexpr States kAnyKept = {kWaiting, kDropping};
  static constexpr States kAnyUnhealthy = {kUnhealthy, kCutting, kStopping};
  static constexpr States kAnyRunning = {kHealthy, kUnhealthy, kCutting, kStopping};
  static constexpr States kAnyActive = {kInit,    kPreparing, kUnprepared, kWaiting,  kDropping,
                                        kHealthy, kUnhealthy, kCutting,    kStopping, kDone};
  // The outcome is fixed; the agent waits for the workers' remaining processes.
  static constexpr States kAnyEnding = {kSucceeded, kStopped, kFailed};
  // Without a row these have no effect.
  static constexpr Inputs kOptional = {kStale, kWorkerCapable, kWorkerLeft, kAllLeft,
                                       kTick,  kReleased,      kStopSent,   kStartAbandoned};

  static constexpr Row kRows[] = {
      {.in = kAnyActive, .on = {kProgress}, .run = &P::report_progress},
      {.in = kAnyEnding, .on = {kProgress}, .run = &P::report_progress},

      {.in = {kInit}, .on = {kReady}, .run = &P::join},
      {.in = {kInit}, .on = {kRound}, .run = &P::start_group, .next = kHealthy},
      {.in = {kInit, kWaiting, kDropping}, .on = {kStopOrderedIdle}, .run = &P::join_ordered},

      {.in = {kHealthy}, .on = {kStopOrdered}, .run = &P::stop_workers, .next = kUnhealthy},
      {.in = {kHealthy}, .on = {kWorkerDone}, .run = &P::count_exit},
      {.in = {kHealthy}, .on = {kWorkerFailed}, .run = &P::add_first_failure, .next = kUnhealthy},
      {.in = {kHealthy}, .on = {kGroupEnded}, .run = &P::send_done, .next = kDone},
      {.in = {kHealthy}, .on = {kReleased}, .run = &P::leave_at_step, .next = kStopped},
      {.in = {kHealthy}, .on = {kStopAfterExits}, .run = &P::kill},
      {.in = {kHealthy}, .on = {kStartAbandoned}, .run = &P::rejoin, .next = kInit},
      {.in = {kHealthy}, .on = {kFailureFound}},

      {.in = {kUnhealthy, kCutting},
       .on = {kStopOrdered},
       .run = &P::stop_workers,
       .next = kUnhealthy},
      {.in = {kStopping}, .on = {kStopOrdered}, .run = &P::stop_workers},
      {.in = {kUnhealthy}, .on = {kTick}, .run = &P::stop_unordered},
      {.in = {kUnhealthy}, .on = {kStopSent}, .next = kStopping},
      {.in = {kUnhealthy, kStopping}, .on = {kWorkerDone, kWorkerStopped}, .run = &P::count_exit},
      {.in = {kUnhealthy, kStopping}, .on = {kWorkerFailed}, .run = &P::add_failure},
      {.in = {kUnhealthy, kStopping}, .on = {kGroupEnded}, .run = &P::send_gone},
      {.in = {kUnhealthy, kStopping}, .on = {kGroupGoneToJoin}, .run = &P::rejoin, .next = kInit},
      {.in = {kUnhealthy, kStopping},
       .on = {kStopOrderedIdle},
       .run = &P::join_after_failure,
       .next = kInit},

      {.in = kAnyRunning, .on = {kWorkerStarted}, .run = &P::count_started},
      {.in = kAnyRunning, .on = {kNodeBad}, .run = &P::leave_bad_node, .next = kFailed},
      {.in = kAnyActive, .on = {kSuccess}, .run = &P::end, .next = kSucceeded},
      {.in = kAnyActive, .on = {kEnd}, .run = &P::end, .next = kFailed},
      {.in = kAnyActive, .on = {kEndAtStep}, .run = &P::end, .next = kStopped},
      {.in = kAnyActive, .on = {kStopRequested}, .run = &P::leave, .next = kStopped},
      {.in = kAnyInit, .on = {kStopAfterExits}, .run = &P::leave, .next = kStopped},
      {.in = kAnyUnhealthy, .on = {kStopAfterExits}, .run = &P::leave, .next = kStopped},
      {.in = kAnyInit, .on = {kFailureFound}, .run = &P::add_evidence},
      {.in = kAnyUnhealthy, .on = {kFailureFound}, .run = &P::add_evidence},

      // A done node waits for the others, and an order can make it join again.
      {.in = {kDone}, .on = {kStopOrderedIdle}, .run = &P::join_when_done, .next = kInit},
      {.in = {kDone}, .on = {kStopAfterExits}, .run = &P::leave, .next = kStopped},
      {.in = {kDone}, .on = {kFailureFound}, .run = &P::add_evidence},
      {.in = {kDone}, .on = {kTick, kBarrierOver}, .run = &P::leave_done},
      {.in = {kDone}, .on = {kOverAtStep}, .run = &P::finish_done_at_step, .next = kStopped},
      {.in = {kDone}, .on = {kOver}, .run = &P::finish, .next = kFinished},

      {.in = kAnyEnding, .on = {kStopOrdered, kStopOrderedIdle}},
      {.in = kAnyEnding, .on = {kWorkerStarted}, .run = &P::count_started},
      {.in = kAnyEnding,
       .on = {kWorkerDone, kWorkerStopped, kWorkerUnranked},
       .run = &P::count_exit},
      {.in = kAnyEnding, .on = {kWorkerFailed, kNodeBad}, .run = &P::add_failure},
      {.in = kAnyEnding, .on = {kFailureFound}, .run = &P::add_evidence},
      {.in = kAnyEnding, .on = {kGroupEnded}, .run = &P::finish_gone, .next = kFinished},
      {.in = kAnyEnding, .on = {kStopRequested, kStopAfterExits}, .run = &P::kill},
      {.in = kAnyEnding, .on = {kOver}, .run = &P::finish, .next = kFinished},
      {.in = {kSucceeded}, .on = {kSuccess}, .run = &P::end},
      {.in = {kSucceeded}, .on = {kEnd}, .run = &P::end, .next = kFailed},
      {.in = {kSucceeded}, .on = {kEndAtStep}, .run = &P::end, .next = kStopped},
      {.in = {kStopped, kFailed}, .on = {kRound, kSuccess}},
      // The coordinator closed the job before it received this node's leave.
      {.in = {kStopped, kFailed}, .on = {kEnd, kEndAtStep}, .run = &P::adopt_job_code},
      {.in = {kFinished}, .on = {kSuccess, kEnd, kEndAtStep}, .run = &P::adopt_job_code},

      // ---- Workers that are kept for another round.
      {.in = {kHealthy, kUnhealthy, kCutting, kStopping},
       .on = {kWorkerCapable},
       .run = &P::count_capable},
      {.in = {kHealthy, kUnhealthy}, .on = {kCutOrdered}, .run = &P::cut_workers, .next = kCutting},
      {.in = {kCutting}, .on = {kCutOrdered}, .run = &P::note_order},
      {.in = {kCutting}, .on = {kWorkerLeft}, .run = &P::count_left},
      {.in = {kCutting}, .on = {kAllLeft}, .run = &P::keep_workers, .next = kWaiting},
      {.in = {kCutting}, .on = {kTick}, .run = &P::abandon_late_cut, .next = kUnhealthy},
      {.in = {kCutting},
       .on = {kWorkerDone, kWorkerStopped},
       .run = &P::count_exit,
       .next = kUnhealthy},
      {.in = {kCutting}, .on = {kWorkerFailed}, .run = &P::add_failure, .next = kUnhealthy},

      {.in = {kWaiting}, .on = {kRound}, .run = &P::continue_group, .next = kHealthy},
      {.in = {kDropping}, .on = {kRound}, .run = &P::continue_group, .next = kStopping},
      {.in = kAnyKept,
       .on = {kWorkerDone, kWorkerFailed, kWorkerStopped, kWorkerUnranked},
       .run = &P::note_waiting_exit},
      {.in = kAnyKept, .on = {kNodeBad}, .run = &P::leave_bad_node, .next = kFailed},
      {.in = {kWaiting}, .on = {kStopSent}, .next = kDropping},
      {.in = kAnyKept, .on = {kGroupEnded, kGroupGoneToJoin}, .run = &P::drop_group, .next = kInit},

      {.in = {kHealthy}, .on = {kWaitingFailed}, .run = &P::fail_waiting, .next = kUnhealthy},
      {.in = {kUnhealthy, kStopping}, .on = {kWaitingFailed}, .run = &P::fail_waiting},
      {.in = {kHealthy, kUnhealthy, kStopping},
       .on = {kWaitingNodeBad},
       .run = &P::leave_bad_node,
       .next = kFailed},
      {.in = {kFailed}, .on = {kWaitingFailed, kWaitingNodeBad}, .run = &P::count_exit},

      // ---- Workers that are started before this node joins.
      {.in = {kInit}, .on = {kReadyToPrepare}, .run = &P::prepare_group, .next = kPreparing},
      {.in = kAnyPrepared, .on = {kStopOrderedIdle}},
      {.in = {kPreparing}, .on = {kWorkerLeft}, .run = &P::count_left},
      {.in = {kPreparing}, .on = {kAllLeft}, .run = &P::request_join, .next = kWaiting},
      {.in = {kPreparing}, .on = {kTick}, .run = &P::abandon_late_preparation, .next = kUnprepared},
      {.in = kAnyPrepared,
       .on = {kWorkerUnranked},
       .run = &P::note_unprepared_exit,
       .next = kUnprepared},
      {.in = kAnyPrepared,
       .on = {kGroupEnded, kGroupGoneToJoin},
       .run = &P::join_unprepared,
       .next = kInit},
  };

  using Edges = TransitionTable<Edge, kPolicyStates, kPolicyInputs>;
  static constexpr Edge without_row(PolicyState state, PolicyInput input) {
    if (kOptional.has(input) || state == kFinished) return {nullptr, state};
    return {&P::lose, kFinished, true};
  }
};

const AgentPolicy::Edge& AgentPolicy::edge_of(PolicyState state, PolicyInput input) {
  static constexpr auto kTable = make_transitions<Table::Edges>(Table::kRows, &Table::without_row);
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(input)];
}

namespace {

// The same worker would fail in the same way in every round.
bool repeats(const WorkerExit& exit) {
  if (exit.kind != ExitKind::kNotStarted) return false;
  return exit.error == ENOENT || exit.error == EACCES || exit.error == ENOEXEC;
}

// An earlier version does not send it.
StopReason reason_of(const rdzv::Restart& restart) {
  StopReason why{.text = restart.reason};
  switch (restart.cause) {
    case rdzv::RestartCause::kWorkerFailed: why.cause = StopCause::kWorkerFailed; break;
    case rdzv::RestartCause::kMemberLost: why.cause = StopCause::kNodeLost; break;
    case rdzv::RestartCause::kMemberLeft: why.cause = StopCause::kNodeLeft; break;
    case rdzv::RestartCause::kGrowth:
    case rdzv::RestartCause::kRejoin: break;
  }
  return why;
}

}  // namespace

// ---- What an event means.

PolicyInput AgentPolicy::read(const RendezvousReady& event, Turn* turn) const {
  turn->ready = &event;
  return agent_.inplace_prepare ? PolicyInput::kReadyToPrepare : PolicyInput::kReady;
}
PolicyInput AgentPolicy::read(const Progress& event, Turn* turn) const {
  turn->progress = &event;
  return PolicyInput::kProgress;
}
PolicyInput AgentPolicy::read(const RendezvousLost& event, Turn* turn) const {
  turn->end = End{.events = {RendezvousUnreachable{}},
                  .exit_code = event.exit_code,
                  .message = event.message,
                  .why = StopCause::kCoordinatorLost};
  return PolicyInput::kEnd;
}
PolicyInput AgentPolicy::read(const LocalFault& event, Turn* turn) const {
  turn->end = End{.events = {LeaveRequested{event.message, event.exit_code}, WorkersGone{}},
                  .exit_code = event.exit_code,
                  .message = event.message,
                  .is_unstarted = true,
                  .follows_job = true};
  return PolicyInput::kEnd;
}
PolicyInput AgentPolicy::read(const NodeUnfit& event, Turn* turn) const {
  turn->end = End{.events = {LeaveRequested{event.message, kExitBadHost}},
                  .exit_code = kExitBadHost,
                  .message = event.message + (event.has_joined ? "; this node leaves the job"
                                                               : "; this node does not join"),
                  .why = StopCause::kNodeLeft,
                  .follows_failure = true};
  return PolicyInput::kEnd;
}
PolicyInput AgentPolicy::read(const rdzv::Refused& event, Turn* turn) const {
  // There may be room for this node later.
  const bool is_full = event.error.code() == StatusCode::kResourceExhausted;
  const int code = event.is_excluded ? kExitBadHost : is_full ? kExitJoinTimedOut : kExitRejected;
  turn->end = End{{event}, code, std::string(event.error.message())};
  return PolicyInput::kEnd;
}
PolicyInput AgentPolicy::read(const rdzv::TimedOut& event, Turn* turn) const {
  turn->end = End{{event}, kExitJoinTimedOut, event.message};
  return PolicyInput::kEnd;
}
PolicyInput AgentPolicy::read(const rdzv::Closed& event, Turn* turn) const {
  turn->end = End{.events = {event}, .job = event.result};
  const bool is_success = event.result->outcome == JobOutcome::kSucceeded;
  const bool is_at_step =
      is_success ? stop_step_ >= 0 : exit_code_of(*event.result) == kExitStoppedAtStep;
  if (is_at_step) return PolicyInput::kEndAtStep;
  return is_success ? PolicyInput::kSuccess : PolicyInput::kEnd;
}
PolicyInput AgentPolicy::read(const rdzv::Round& event, Turn* turn) const {
  turn->round = &event;
  const bool is_stale = participant_.classify(event) == ParticipantInput::kStale;
  return is_stale ? PolicyInput::kStale : PolicyInput::kRound;
}
PolicyInput AgentPolicy::read(const rdzv::Restart& event, Turn* turn) const {
  if (participant_.classify(event) == ParticipantInput::kStale) return PolicyInput::kStale;
  turn->order = Order{event, event.reason, to_string(event.cause), event.grace,
                      event.why.value_or(reason_of(event))};
  return can_cut() ? PolicyInput::kCutOrdered : ordered();
}
PolicyInput AgentPolicy::read(const rdzv::Evicted& event, Turn* turn) const {
  const std::string what = "the other nodes continued without this node: " + event.reason;
  turn->order =
      Order{event, what, "evicted", std::nullopt, {.cause = StopCause::kEvicted, .text = what}};
  return ordered();
}
PolicyInput AgentPolicy::ordered() const {
  return participant_.has_workers() ? PolicyInput::kStopOrdered : PolicyInput::kStopOrderedIdle;
}
PolicyInput AgentPolicy::read(const WorkerStarted& event, Turn* turn) const {
  turn->started = &event;
  return round_ == nullptr ? PolicyInput::kStale : PolicyInput::kWorkerStarted;
}
PolicyInput AgentPolicy::read(const WorkerExited& event, Turn* turn) const {
  turn->exited = &event;
  if (round_ == nullptr) return PolicyInput::kWorkerUnranked;  // no failure of the job
  if (event.exit.succeeded()) return PolicyInput::kWorkerDone;
  if (event.exit.stopped_by_us) return PolicyInput::kWorkerStopped;
  if (has_stopped_at_step(event.exit)) return PolicyInput::kWorkerDone;
  return means_bad_node(event.exit) ? PolicyInput::kNodeBad : PolicyInput::kWorkerFailed;
}
PolicyInput AgentPolicy::read(const FailureFound& event, Turn* turn) const {
  turn->found = &event.worker;
  return PolicyInput::kFailureFound;
}
PolicyInput AgentPolicy::read(const WorkerCapable& event, Turn* turn) const {
  turn->local_rank = event.local_rank;
  return PolicyInput::kWorkerCapable;
}
PolicyInput AgentPolicy::read(const WorkerLeft& event, Turn* turn) const {
  turn->local_rank = event.local_rank;
  return kept_.is_last(event.local_rank) ? PolicyInput::kAllLeft : PolicyInput::kWorkerLeft;
}
PolicyInput AgentPolicy::read(const LeaveAtStep& event, Turn* turn) const {
  turn->step = event.step;
  return PolicyInput::kReleased;
}
PolicyInput AgentPolicy::read(const GroupGone&, Turn*) const {
  if (!has_processes() || !all_ended()) return PolicyInput::kSupervisionLost;
  return participant_.must_rejoin() ? PolicyInput::kGroupGoneToJoin : PolicyInput::kGroupEnded;
}
PolicyInput AgentPolicy::read(const StopRequested& event, Turn* turn) const {
  turn->signal = event.signal;
  return all_ended() ? PolicyInput::kStopAfterExits : PolicyInput::kStopRequested;
}
PolicyInput AgentPolicy::read(const SupervisionLost& event, Turn* turn) const {
  turn->lost = event.message;
  return PolicyInput::kSupervisionLost;
}
PolicyInput AgentPolicy::read(const PolicyTick&, Turn* turn) const {
  return deadline_ && turn->now >= *deadline_ ? PolicyInput::kTick : PolicyInput::kStale;
}

bool AgentPolicy::has_processes(PolicyState state) const {
  switch (state) {
    case PolicyState::kPreparing:
    case PolicyState::kUnprepared:
    case PolicyState::kWaiting:
    case PolicyState::kDropping:
    case PolicyState::kSucceeded:
    case PolicyState::kStopped:
    case PolicyState::kFailed: return true;
    default: return participant_.has_workers();
  }
}

// ---- Failures.

void AgentPolicy::note_failure(Turn* turn) {
  count_exit(turn);
  insert_failure(failure_of(*turn->exited));
}

// What is known about the worker's failure with its exit; not in the list.
WorkerFailure AgentPolicy::failure_of(const WorkerExited& event) {
  WorkerFailure failure = take_failure(event.local_rank, event.pid);
  failure.at = std::min(failure.at, event.exit.at);
  update_failure(&failure, event);
  return failure;
}

void AgentPolicy::add_failure(Turn* turn) {
  const int before = cause_rank();
  note_failure(turn);
  send_cause_after(turn->exited->local_rank, before, turn);
}

void AgentPolicy::add_first_failure(Turn* turn) {
  add_failure(turn);
  await_order(turn);
}

void AgentPolicy::await_order(Turn* turn) {
  end_reason_ = cause().describe();
  deadline_ = add_saturating(turn->now, kOrderTimeout);
}

// The job continues without this node: the rendezvous receives a leave, not a failure. If it cannot
// continue, it has lost a node: another one can replace this one.
void AgentPolicy::leave_bad_node(Turn* turn) {
  const WorkerExited& event = *turn->exited;
  note_failure(turn);
  const auto failed =
      std::find_if(failures_.begin(), failures_.end(),
                   [&](const WorkerFailure& one) { return one.local_rank == event.local_rank; });
  result_.exit_code = failed->exit_code;
  result_.message = failed->describe() + own_rule(event.exit)->name;
  deadline_.reset();
  update(LeaveRequested{result_.message}, turn);
  turn->report(AgentEvent::Kind::kNotice, state(), result_.message + ": this node leaves the job");
  stop_reason_ = own_failure();
  stop_group(failure_grace(), "leaving the job; stopping the other workers", turn);
}

void AgentPolicy::add_evidence(Turn* turn) {
  const WorkerExited& event = *turn->found;
  kept_.update_exit(event);  // of a worker that waited: reported in the next round
  if (!participant_.has_workers()) return;
  const int before = cause_rank();
  WorkerFailure failure = take_failure(event.local_rank, event.pid);
  update_failure(&failure, event);
  insert_failure(std::move(failure));
  send_cause_after(event.local_rank, before, turn);
}

// The known failure of this worker, which is taken out of the list, or a new one.
WorkerFailure AgentPolicy::take_failure(int local_rank, int pid) {
  WorkerFailure failure;
  failure.local_rank = local_rank;
  failure.rank = round_->workers[static_cast<std::size_t>(local_rank)].rank;
  failure.pid = pid;
  failure.at = Instant::max();
  const auto known =
      std::find_if(failures_.begin(), failures_.end(),
                   [local_rank](const WorkerFailure& one) { return one.local_rank == local_rank; });
  if (known != failures_.end()) {
    failure = std::move(*known);
    failures_.erase(known);
  }
  return failure;
}

void AgentPolicy::update_failure(WorkerFailure* failure, const WorkerExited& event) {
  const WorkerExit& exit = event.exit;
  if (exit.kind != ExitKind::kUnknown || failure->exit.kind == ExitKind::kUnknown) {
    failure->exit = exit;
  }
  if (exit.kind != ExitKind::kUnknown) failure->at = std::min(failure->at, exit.at);
  failure->at = std::min(failure->at, event.reported_at.value_or(Instant::max()));
  failure->evidence = event.evidence;
  if (!event.output.empty()) failure->stderr_tail = event.output;
  if (!event.fingerprint.empty()) failure->fingerprint = event.fingerprint;
  if (event.advice) failure->advice = event.advice;
  // An exit that our signal caused does not tell how the worker failed.
  const bool is_own_exit =
      exit.kind != ExitKind::kUnknown && !(exit.stopped_by_us && exit.kind == ExitKind::kSignaled);
  failure->exit_code = is_own_exit ? exit_code_of(exit) : 1;
  failure->message = is_own_exit ? exit.describe()
                     : event.evidence.error.empty()
                         ? "reported an error and was stopped before it ended"
                         : "raised " + event.evidence.error + ", and was stopped before it ended";
  failure->message += repetition_of(*failure);
}

const WorkerFailure* AgentPolicy::failure_of(int local_rank) const {
  const auto found =
      std::find_if(failures_.begin(), failures_.end(),
                   [local_rank](const WorkerFailure& one) { return one.local_rank == local_rank; });
  return found == failures_.end() ? nullptr : &*found;
}

void AgentPolicy::insert_failure(WorkerFailure failure) {
  const auto place_of = [](const WorkerFailure& one) {
    return failure_order(one.evidence->error, one.at);
  };
  const auto later = std::upper_bound(
      failures_.begin(), failures_.end(), failure,
      [&](const WorkerFailure& a, const WorkerFailure& b) { return place_of(a) < place_of(b); });
  failures_.insert(later, std::move(failure));
}

int AgentPolicy::cause_rank() const { return failures_.empty() ? -1 : cause().local_rank; }

// More is known about one failure: its cause, or that a different failure is the cause.
void AgentPolicy::send_cause_after(int changed, int before, Turn* turn) {
  const int now = cause_rank();
  if (now == changed || now != before) send_cause(turn);
}

void AgentPolicy::send_cause(Turn* turn) {
  const bool is_awaited = participant_.state() == ParticipantState::kWorking;
  if (state() == AgentState::kUnhealthy && is_awaited) send_failure(cause(), turn);
}

// "; the same failure in 3 rounds in a row, …", or "".
std::string AgentPolicy::repetition_of(const WorkerFailure& failure) const {
  const bool is_same = same_failures_ > 0 && !failure.fingerprint.empty() &&
                       failure.fingerprint == last_fingerprint_;
  if (!is_same) return "";
  return "; the same failure in " + std::to_string(same_failures_ + 1) +
         " rounds in a row, each within " +
         duration_text(std::max(longest_round_, failure.at - round_began_)) + " of its start";
}

void AgentPolicy::end_streak() {
  if (failures_.empty() || cause().fingerprint.empty()) {
    same_failures_ = 0;
    return;
  }
  const WorkerFailure& failure = cause();
  if (failure.fingerprint != last_fingerprint_) {
    last_fingerprint_ = failure.fingerprint;
    same_failures_ = 0;
    longest_round_ = {};
  }
  ++same_failures_;
  longest_round_ = std::max(longest_round_, failure.at - round_began_);
}

// Neither success nor a stop.
bool AgentPolicy::is_failure(const WorkerExit& exit) {
  return !exit.succeeded() && !exit.stopped_by_us && !has_stopped_at_step(exit);
}

// The rule of this launcher that decides; null: the job's rules do.
const FailureRule* AgentPolicy::own_rule(const WorkerExit& exit) const {
  FailureEvent event{.exit_code = exit_code_of(exit)};
  if (exit.ends_job) {
    event.kind = FailureKind::kHang;
  } else if (repeats(exit)) {
    event.kind = FailureKind::kUnstartable;
  } else if (!exit.verdict.empty()) {
    return nullptr;  // the code of a worker that was killed by a verdict is the launcher's
  }
  return find_rule(launcher_rules_, event);
}

bool AgentPolicy::means_bad_node(const WorkerExit& exit) const {
  const FailureRule* const rule = own_rule(exit);
  return rule != nullptr && rule->node_leaves;
}

// Why no restart follows; null: one may.
const char* AgentPolicy::why_final(const WorkerFailure& failure) const {
  const FailureRule* const rule = own_rule(failure.exit);
  const bool is_final = rule != nullptr && rule->action == FailureAction::kStop;
  return is_final ? rule->name.c_str() : nullptr;
}

void AgentPolicy::send_failure(const WorkerFailure& failure, Turn* turn) {
  const char* final = why_final(failure);
  if (final == nullptr) {
    turn->act(Send{rdzv::Failed{self().id, round_->round, FailureReport(failure)}});
    return;
  }
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kWorker;
  result.exit_code = failure.exit_code;
  result.rank = failure.rank;
  result.node = self().name;
  result.evidence = failure.evidence;
  result.message = describe_worker(failure.rank, self().name, failure.message) + final;
  turn->act(Send{rdzv::Close{self().id, std::move(result)}});
}

// A failure that would occur in every round takes precedence over one that may be transient;
// otherwise the first failure is the cause.
const WorkerFailure& AgentPolicy::cause() const {
  ELASTIC_CHECK(!failures_.empty());
  for (const WorkerFailure& failure : failures_) {
    if (why_final(failure) != nullptr) return failure;
  }
  return failures_.front();
}

}  // namespace core
}  // namespace elastic
