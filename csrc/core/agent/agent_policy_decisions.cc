// What the agent's policy decides: what an event means, given the policy's data, and which step and
// state follow; which of the failures of this node's workers is the cause, and what the rendezvous
// receives of it. agent_policy.cc has the theory of operation.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/agent/agent_policy.h"
#include "core/base/check.h"
#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/rendezvous/first_failure.h"

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
namespace {

constexpr std::size_t index_of(AgentState state) { return static_cast<std::size_t>(state); }
constexpr std::size_t index_of(PolicyInput input) { return static_cast<std::size_t>(input); }

static_assert(index_of(AgentState::kUnknown) + 1 == kAgentStates);
static_assert(index_of(PolicyInput::kReleased) + 1 == kPolicyInputs);

constexpr PolicyTable make_table() {
  using State = AgentState;
  using Input = PolicyInput;
  using Step = PolicyStep;
  PolicyTable table{};
  const auto at = [&table](State state, Input input) -> PolicyEdge& {
    return table[index_of(state)][index_of(input)];
  };
  for (std::size_t state = 0; state < kAgentStates; ++state) {
    table[state].fill({Step::kLose, State::kUnknown});
    for (const Input input : {Input::kStale, Input::kTick, Input::kWorkerCapable,
                              Input::kWorkerLeft, Input::kReleased}) {
      table[state][index_of(input)] = {Step::kIgnore, static_cast<State>(state)};
    }
    table[state][index_of(Input::kProgress)] = {Step::kReport, static_cast<State>(state)};
  }
  table[index_of(State::kUnknown)].fill({Step::kIgnore, State::kUnknown});

  at(State::kHealthy, Input::kFailureFound) = {Step::kIgnore, State::kHealthy};
  for (const State state :
       {State::kInit, State::kUnhealthy, State::kStopped, State::kSucceeded, State::kFailed}) {
    at(state, Input::kFailureFound) = {Step::kAddEvidence, state};
  }

  at(State::kInit, Input::kReady) = {Step::kJoin, State::kInit};
  at(State::kInit, Input::kReadyToPrepare) = {Step::kPrepareGroup, State::kInit};
  at(State::kInit, Input::kRound) = {Step::kStartGroup, State::kHealthy};
  at(State::kInit, Input::kStopOrderedIdle) = {Step::kJoin, State::kInit};
  at(State::kInit, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kInit, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kInit, Input::kStopRequested) = {Step::kLeave, State::kStopped};

  // Workers that wait for the next round.
  at(State::kInit, Input::kRoundForKept) = {Step::kContinueGroup, State::kHealthy};
  at(State::kInit, Input::kKeptExit) = {Step::kNoteKeptExit, State::kInit};
  at(State::kInit, Input::kNodeBad) = {Step::kLeaveBadNode, State::kFailed};
  at(State::kInit, Input::kKeptGone) = {Step::kDropKept, State::kInit};

  // Workers that were started before this node joins.
  at(State::kInit, Input::kWorkerLeft) = {Step::kCountLeft, State::kInit};
  at(State::kInit, Input::kAllLeft) = {Step::kJoinPrepared, State::kInit};
  at(State::kInit, Input::kPreparedExit) = {Step::kNotePreparedExit, State::kInit};
  at(State::kInit, Input::kCutExpired) = {Step::kAbandonPrepared, State::kInit};
  at(State::kInit, Input::kPreparedGone) = {Step::kJoinUnprepared, State::kInit};

  for (const State state : {State::kHealthy, State::kUnhealthy}) {
    at(state, Input::kWorkerCapable) = {Step::kCountCapable, state};
    at(state, Input::kCutOrdered) = {Step::kCutWorkers, State::kUnhealthy};
  }
  at(State::kUnhealthy, Input::kWorkerLeft) = {Step::kCountLeft, State::kUnhealthy};
  at(State::kUnhealthy, Input::kAllLeft) = {Step::kKeepWorkers, State::kInit};
  at(State::kUnhealthy, Input::kCutExpired) = {Step::kAbandonCut, State::kUnhealthy};

  at(State::kHealthy, Input::kStopOrdered) = {Step::kStopWorkers, State::kUnhealthy};
  at(State::kHealthy, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kHealthy, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kHealthy, Input::kWorkerStarted) = {Step::kCountStarted, State::kHealthy};
  at(State::kHealthy, Input::kWorkerDone) = {Step::kCountExit, State::kHealthy};
  at(State::kHealthy, Input::kWorkerFailed) = {Step::kAddFailure, State::kUnhealthy};
  at(State::kHealthy, Input::kNodeBad) = {Step::kLeaveBadNode, State::kFailed};
  at(State::kHealthy, Input::kGroupEnded) = {Step::kSendDone, State::kSucceeded};
  at(State::kHealthy, Input::kReleased) = {Step::kLeaveAtStep, State::kStopped};
  at(State::kHealthy, Input::kStopRequested) = {Step::kLeave, State::kStopped};
  at(State::kHealthy, Input::kKillRequested) = {Step::kKill, State::kHealthy};

  at(State::kUnhealthy, Input::kStopOrdered) = {Step::kStopWorkers, State::kUnhealthy};
  at(State::kUnhealthy, Input::kStopOrderedIdle) = {Step::kJoin, State::kInit};
  at(State::kUnhealthy, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kUnhealthy, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kUnhealthy, Input::kWorkerStarted) = {Step::kCountStarted, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerDone) = {Step::kCountExit, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerFailed) = {Step::kAddFailure, State::kUnhealthy};
  at(State::kUnhealthy, Input::kNodeBad) = {Step::kLeaveBadNode, State::kFailed};
  at(State::kUnhealthy, Input::kWorkerStopped) = {Step::kCountExit, State::kUnhealthy};
  at(State::kUnhealthy, Input::kGroupEnded) = {Step::kSendGone, State::kUnhealthy};
  at(State::kUnhealthy, Input::kGroupGoneToJoin) = {Step::kRejoin, State::kInit};
  at(State::kUnhealthy, Input::kStopRequested) = {Step::kLeave, State::kStopped};
  at(State::kUnhealthy, Input::kTick) = {Step::kStopUnordered, State::kUnhealthy};

  // A done node waits for the others, and an order can make it join again.
  at(State::kSucceeded, Input::kStopOrderedIdle) = {Step::kJoin, State::kInit};
  at(State::kSucceeded, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kSucceeded, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kSucceeded, Input::kStopRequested) = {Step::kLeave, State::kStopped};
  at(State::kSucceeded, Input::kTick) = {Step::kLeaveDone, State::kSucceeded};

  // The outcome is fixed; the agent waits for the workers' remaining processes.
  for (const State state : {State::kStopped, State::kSucceeded, State::kFailed}) {
    at(state, Input::kStopOrdered) = {Step::kIgnore, state};
    at(state, Input::kWorkerStarted) = {Step::kCountStarted, state};
    at(state, Input::kWorkerDone) = {Step::kCountExit, state};
    at(state, Input::kWorkerFailed) = {Step::kAddFailure, state};
    at(state, Input::kNodeBad) = {Step::kAddFailure, state};
    at(state, Input::kWorkerStopped) = {Step::kCountExit, state};
    at(state, Input::kGroupEnded) = {Step::kFinish, state};
    at(state, Input::kKillRequested) = {Step::kKill, state};
  }
  for (const State state : {State::kStopped, State::kFailed}) {
    at(state, Input::kRound) = {Step::kIgnore, state};
    at(state, Input::kStopOrderedIdle) = {Step::kIgnore, state};  // of a round that it has left
    at(state, Input::kSuccess) = {Step::kIgnore, state};
    at(state, Input::kEnd) = {Step::kIgnore, state};
  }
  return table;
}

constexpr PolicyTable kTable = make_table();

// No restart follows: the same worker would fail in the same way in every round, or a hang ends the
// job.
bool repeats(const WorkerExit& exit) {
  if (exit.ends_job) return true;
  if (exit.kind != ExitKind::kNotStarted) return false;
  return exit.error == ENOENT || exit.error == EACCES || exit.error == ENOEXEC;
}

}  // namespace

const PolicyTable& policy_table() { return kTable; }

const PolicyEdge& edge_of(AgentState state, PolicyInput input) {
  return kTable[index_of(state)][index_of(input)];
}

struct AgentPolicy::Reader {
  const AgentPolicy& policy;

  PolicyInput operator()(const RendezvousReady&) const {
    return policy.agent_.inplace_prepare ? PolicyInput::kReadyToPrepare : PolicyInput::kReady;
  }
  PolicyInput operator()(const Progress&) const { return PolicyInput::kProgress; }
  PolicyInput operator()(const RendezvousLost&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const LocalFault&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const rdzv::Round& round) const {
    if (is_stale(round)) return PolicyInput::kStale;
    return policy.is_waiting() ? PolicyInput::kRoundForKept : PolicyInput::kRound;
  }
  PolicyInput operator()(const rdzv::Restart& restart) const {
    if (is_stale(restart)) return PolicyInput::kStale;
    return policy.can_cut() ? PolicyInput::kCutOrdered : ordered();
  }
  PolicyInput operator()(const rdzv::Evicted&) const { return ordered(); }
  PolicyInput operator()(const rdzv::Refused&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const rdzv::TimedOut&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const rdzv::Closed& closed) const {
    const bool is_success = closed.result->outcome == JobOutcome::kSucceeded;
    return is_success ? PolicyInput::kSuccess : PolicyInput::kEnd;
  }
  PolicyInput operator()(const WorkerStarted&) const {
    return policy.round_ == nullptr ? PolicyInput::kStale : PolicyInput::kWorkerStarted;
  }
  PolicyInput operator()(const WorkerExited& exited) const {
    if (policy.is_waiting()) {
      const bool is_bad = policy.round_ != nullptr && AgentPolicy::is_failure(exited.exit) &&
                          policy.means_bad_node(exited.exit);
      return is_bad ? PolicyInput::kNodeBad : PolicyInput::kKeptExit;
    }
    if (policy.round_ == nullptr) {  // a failure without a rank is none of the job
      const bool is_init = policy.state_ == AgentState::kInit;
      return is_init ? PolicyInput::kPreparedExit : PolicyInput::kWorkerStopped;
    }
    if (exited.exit.succeeded()) return PolicyInput::kWorkerDone;
    if (exited.exit.stopped_by_us) return PolicyInput::kWorkerStopped;
    if (AgentPolicy::has_stopped_at_step(exited.exit)) return PolicyInput::kWorkerDone;
    return policy.means_bad_node(exited.exit) ? PolicyInput::kNodeBad : PolicyInput::kWorkerFailed;
  }
  PolicyInput operator()(const FailureFound&) const { return PolicyInput::kFailureFound; }
  PolicyInput operator()(const WorkerCapable&) const { return PolicyInput::kWorkerCapable; }
  PolicyInput operator()(const WorkerLeft& left) const {
    if (!policy.is_cutting_ && !policy.is_preparing_) return PolicyInput::kStale;
    if (policy.is_preparing_ && policy.is_stopping_) return PolicyInput::kStale;
    const std::vector<bool>& known = policy.left_;
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (!known[i] && i != static_cast<std::size_t>(left.local_rank)) {
        return PolicyInput::kWorkerLeft;
      }
    }
    return PolicyInput::kAllLeft;
  }
  PolicyInput operator()(const LeaveAtStep&) const { return PolicyInput::kReleased; }
  PolicyInput operator()(const GroupGone&) const {
    if (!policy.has_processes() || !policy.all_ended()) return PolicyInput::kSupervisionLost;
    if (policy.is_waiting()) return PolicyInput::kKeptGone;
    if (policy.is_preparing_ && policy.state_ == AgentState::kInit) {
      return PolicyInput::kPreparedGone;
    }
    return policy.participant_.must_rejoin() ? PolicyInput::kGroupGoneToJoin
                                             : PolicyInput::kGroupEnded;
  }
  PolicyInput operator()(const StopRequested&) const {
    switch (policy.state_) {
      case AgentState::kInit:
      case AgentState::kUnhealthy: return PolicyInput::kStopRequested;
      case AgentState::kHealthy:
        return policy.all_ended() ? PolicyInput::kKillRequested : PolicyInput::kStopRequested;
      case AgentState::kSucceeded:
        return policy.has_processes() ? PolicyInput::kKillRequested : PolicyInput::kStopRequested;
      default: return PolicyInput::kKillRequested;
    }
  }
  PolicyInput operator()(const SupervisionLost&) const { return PolicyInput::kSupervisionLost; }
  PolicyInput operator()(const PolicyTick&) const {
    return policy.is_cutting_ || policy.is_preparing_ ? PolicyInput::kCutExpired
                                                      : PolicyInput::kTick;
  }

  PolicyInput ordered() const {
    return policy.participant_.has_workers() ? PolicyInput::kStopOrdered
                                             : PolicyInput::kStopOrderedIdle;
  }
  bool is_stale(const ParticipantEvent& event) const {
    return policy.participant_.classify(event) == ParticipantInput::kStale;
  }
};

PolicyInput AgentPolicy::classify(const PolicyEvent& event) const {
  return std::visit(Reader{*this}, event);
}

void AgentPolicy::note_failure(const WorkerExited& event, Context* context) {
  count_exit(event, context);
  insert_failure(failure_of(event));
}

// What is known about the worker's failure with its exit; not in the list.
WorkerFailure AgentPolicy::failure_of(const WorkerExited& event) {
  WorkerFailure failure = take_failure(event.local_rank, event.pid);
  failure.failed_at = std::min(failure.failed_at, event.exit.at);
  update_failure(&failure, event.exit, event.facts);
  return failure;
}

void AgentPolicy::add_failure(const WorkerExited& event, Context* context) {
  const int before = cause_rank();
  note_failure(event, context);
  send_cause_after(event.local_rank, before, context);
  if (context->from == AgentState::kHealthy) await_order(context);
}

// The failure of a worker that ended while it waited for a round.
WorkerFailure AgentPolicy::kept_failure_of(const WorkerExited& event) {
  WorkerFailure failure = failure_of(event);
  if (failure.exit_code == 0) failure.exit_code = 1;
  failure.message += " while it waited for the round";
  return failure;
}

void AgentPolicy::fail_kept(const WorkerExited& event, Context* context) {
  if (state_ == AgentState::kFailed) return count_exit(event, context);  // it leaves already
  if (is_failure(event.exit) && means_bad_node(event.exit)) {
    state_ = AgentState::kFailed;
    return leave_bad_node(event, context);
  }
  state_ = AgentState::kUnhealthy;
  count_exit(event, context);
  WorkerFailure failure = kept_failure_of(event);
  const int before = cause_rank();
  insert_failure(std::move(failure));
  send_cause_after(event.local_rank, before, context);
  await_order(context);
}

void AgentPolicy::await_order(Context* context) {
  end_reason_ = cause().describe();
  deadline_ = add_saturating(context->now, kOrderTimeout);
}

// The job continues without this node: the rendezvous receives a leave, not a failure.
void AgentPolicy::leave_bad_node(const WorkerExited& event, Context* context) {
  note_failure(event, context);
  const auto failed =
      std::find_if(failures_.begin(), failures_.end(),
                   [&](const WorkerFailure& one) { return one.local_rank == event.local_rank; });
  result_.exit_code = failed->exit_code;
  result_.message = failed->describe() + "; that code means a bad node (--bad-node-codes)";
  deadline_.reset();
  update(LeaveRequested{result_.message}, context);
  context->report(AgentEvent::Kind::kNotice, state_,
                  result_.message + ": this node leaves the job");
  stop_group(failure_grace(), "leaving the job; stopping the other workers", context);
}

void AgentPolicy::add_evidence(const FailureFound& event, Context* context) {
  for (WorkerExited& exited : kept_exits_) {  // reported in the next round
    if (exited.local_rank == event.local_rank) exited.facts = event.facts;
  }
  if (!participant_.has_workers()) return;
  const int before = cause_rank();
  WorkerFailure failure = take_failure(event.local_rank, event.pid);
  update_failure(&failure, event.exit, event.facts);
  insert_failure(std::move(failure));
  send_cause_after(event.local_rank, before, context);
}

// The known failure of this worker, which is taken out of the list, or a new one.
WorkerFailure AgentPolicy::take_failure(int local_rank, int pid) {
  WorkerFailure failure;
  failure.local_rank = local_rank;
  failure.rank = round_->workers[static_cast<std::size_t>(local_rank)].rank;
  failure.pid = pid;
  failure.failed_at = Instant::max();
  const auto known =
      std::find_if(failures_.begin(), failures_.end(),
                   [local_rank](const WorkerFailure& one) { return one.local_rank == local_rank; });
  if (known != failures_.end()) {
    failure = std::move(*known);
    failures_.erase(known);
  }
  return failure;
}

void AgentPolicy::update_failure(WorkerFailure* failure, const WorkerExit& exit,
                                 const FailureFacts& facts) {
  if (exit.kind != ExitKind::kUnknown || failure->exit.kind == ExitKind::kUnknown) {
    failure->exit = exit;
  }
  if (exit.kind != ExitKind::kUnknown) failure->failed_at = std::min(failure->failed_at, exit.at);
  failure->failed_at = std::min(failure->failed_at, facts.reported_at.value_or(Instant::max()));
  failure->evidence = facts.evidence;
  if (!facts.output.empty()) failure->stderr_tail = facts.output;
  if (!facts.fingerprint.empty()) failure->fingerprint = facts.fingerprint;
  // An exit that our signal caused does not tell how the worker failed.
  const bool is_own_exit =
      exit.kind != ExitKind::kUnknown && !(exit.stopped_by_us && exit.kind == ExitKind::kSignaled);
  failure->exit_code = is_own_exit ? exit_code_of(exit) : 1;
  failure->message = is_own_exit ? exit.describe()
                     : facts.evidence.error.empty()
                         ? "reported an error and was stopped before it ended"
                         : "raised " + facts.evidence.error + ", and was stopped before it ended";
  failure->message += repetition_of(*failure);
}

void AgentPolicy::insert_failure(WorkerFailure failure) {
  const auto place_of = [](const WorkerFailure& one) {
    return failure_order(one.evidence.error, one.failed_at);
  };
  const auto later = std::upper_bound(
      failures_.begin(), failures_.end(), failure,
      [&](const WorkerFailure& a, const WorkerFailure& b) { return place_of(a) < place_of(b); });
  failures_.insert(later, std::move(failure));
}

int AgentPolicy::cause_rank() const { return failures_.empty() ? -1 : cause().local_rank; }

// More is known about one failure: its cause, or that a different failure is the cause.
void AgentPolicy::send_cause_after(int changed, int before, Context* context) {
  const int now = cause_rank();
  if (now == changed || now != before) send_cause(context);
}

void AgentPolicy::send_cause(Context* context) {
  const bool is_awaited = participant_.state() == ParticipantState::kWorking;
  if (state_ == AgentState::kUnhealthy && is_awaited) send_failure(cause(), context);
}

// "; the same failure in 3 rounds in a row, …", or "".
std::string AgentPolicy::repetition_of(const WorkerFailure& failure) const {
  const bool is_same = same_failures_ > 0 && !failure.fingerprint.empty() &&
                       failure.fingerprint == last_fingerprint_;
  if (!is_same) return "";
  return "; the same failure in " + std::to_string(same_failures_ + 1) +
         " rounds in a row, each within " +
         duration_text(std::max(longest_round_, failure.failed_at - round_began_)) +
         " of its start";
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
  longest_round_ = std::max(longest_round_, failure.failed_at - round_began_);
}

// Neither success nor a stop.
bool AgentPolicy::is_failure(const WorkerExit& exit) {
  return !exit.succeeded() && !exit.stopped_by_us && !has_stopped_at_step(exit);
}

// The code of a worker that was killed by a verdict is the launcher's.
bool AgentPolicy::means_bad_node(const WorkerExit& exit) const {
  if (!exit.verdict.empty()) return false;
  return std::find(agent_.bad_node_codes.begin(), agent_.bad_node_codes.end(),
                   exit_code_of(exit)) != agent_.bad_node_codes.end();
}

// Why no restart follows; null: one may.
const char* AgentPolicy::why_final(const WorkerFailure& failure) const {
  if (failure.exit.ends_job) return "; a hang ends the job (--hang-action)";
  if (repeats(failure.exit)) return "; a restart would not help";
  if (!failure.exit.verdict.empty()) return nullptr;
  const auto found =
      std::find(agent_.no_restart_codes.begin(), agent_.no_restart_codes.end(), failure.exit_code);
  return found == agent_.no_restart_codes.end() ? nullptr
                                                : "; that code ends the job (--no-restart-codes)";
}

void AgentPolicy::send_failure(const WorkerFailure& failure, Context* context) {
  const std::string& how = failure.message;
  const char* final = why_final(failure);
  if (final == nullptr) {
    context->act(Send{rdzv::Failed{self().id,
                                   round_->round,
                                   {.local_rank = failure.local_rank,
                                    .rank = failure.rank,
                                    .exit_code = failure.exit_code,
                                    .message = how,
                                    .at = failure.failed_at,
                                    .evidence = failure.evidence}}});
    return;
  }
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kWorker;
  result.exit_code = failure.exit_code;
  result.rank = failure.rank;
  result.node = self().name;
  result.evidence = failure.evidence;
  result.message = describe_worker(failure.rank, self().name, how) + final;
  context->act(Send{rdzv::Close{self().id, std::move(result)}});
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
