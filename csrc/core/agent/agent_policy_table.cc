// The decisions of the agent's policy: what an event means, given the policy's data, and which step
// and state follow. agent_policy.cc has the theory of operation.

#include "core/agent/agent_policy.h"

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

}  // namespace

const PolicyTable& policy_table() { return kTable; }

const PolicyEdge& edge_of(AgentState state, PolicyInput input) {
  return kTable[index_of(state)][index_of(input)];
}

struct AgentPolicy::Reader {
  const AgentPolicy& policy;

  PolicyInput operator()(const RendezvousReady&) const {
    return policy.inplace_prepare_ ? PolicyInput::kReadyToPrepare : PolicyInput::kReady;
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

}  // namespace core
}  // namespace elastic
