#include "core/agent_policy.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "core/check.h"
#include "core/signal_name.h"

// Theory of operation. The states are those that torch's agent names, described at AgentState.
//
// An event is first read in the light of what is known (classify: was that exit a failure? does the
// budget allow another round?), which gives one of the inputs; state and input then name one edge
// of the table, and with it the step to take and the next state. All decisions are in those two
// places; the steps only keep the books and write the actions. A pair that cannot occur leads to
// UNKNOWN: whoever sends it is out of step with us, and workers that nobody understands must not go
// on.
//
// A round ends with GroupGone and never earlier: not even the end of every worker may start the
// next one, since what they left behind could still hold a port or a device. The failures of one
// round are collected until then, and the one that the kernel told first is the cause of them all.
// Together they cost one restart. A failure to execute that will repeat itself (no such program, no
// permission, no program) costs none: the agent ends at once.
//
// The first stop request settles the outcome unless it was settled before: then it, and every later
// one, only decides how long the workers have. From the second on they have no time.

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

constexpr int kSignalBase = 128;  // as a shell tells that a program died by a signal

constexpr std::size_t index_of(AgentState state) { return static_cast<std::size_t>(state); }
constexpr std::size_t index_of(PolicyInput input) { return static_cast<std::size_t>(input); }

static_assert(index_of(AgentState::kUnknown) + 1 == kAgentStates);
static_assert(index_of(PolicyInput::kSupervisionLost) + 1 == kPolicyInputs);

constexpr PolicyTable make_table() {
  using State = AgentState;
  using Input = PolicyInput;
  using Step = PolicyStep;
  PolicyTable table{};
  const auto at = [&table](State state, Input input) -> PolicyEdge& {
    return table[index_of(state)][index_of(input)];
  };
  for (const State state : {State::kInit, State::kHealthy, State::kUnhealthy, State::kStopped}) {
    table[index_of(state)].fill({Step::kLose, State::kUnknown});
  }
  for (const State state : {State::kSucceeded, State::kFailed, State::kUnknown}) {
    table[index_of(state)].fill({Step::kIgnore, state});
  }

  at(State::kInit, Input::kRoundReady) = {Step::kStartGroup, State::kHealthy};
  at(State::kInit, Input::kRoundFailed) = {Step::kFailRound, State::kFailed};
  at(State::kInit, Input::kStopRequested) = {Step::kFinishStopped, State::kStopped};

  at(State::kHealthy, Input::kWorkerStarted) = {Step::kCountStarted, State::kHealthy};
  at(State::kHealthy, Input::kWorkerDone) = {Step::kCountExit, State::kHealthy};
  at(State::kHealthy, Input::kWorkerFailed) = {Step::kStopForFailure, State::kUnhealthy};
  at(State::kHealthy, Input::kGroupGone) = {Step::kSucceed, State::kSucceeded};
  at(State::kHealthy, Input::kStopRequested) = {Step::kStopForRequest, State::kStopped};
  at(State::kHealthy, Input::kHurryRequested) = {Step::kHurry, State::kHealthy};

  at(State::kUnhealthy, Input::kWorkerStarted) = {Step::kCountStarted, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerDone) = {Step::kCountExit, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerFailed) = {Step::kAddFailure, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerStopped) = {Step::kCountExit, State::kUnhealthy};
  at(State::kUnhealthy, Input::kGroupGone) = {Step::kFail, State::kFailed};
  at(State::kUnhealthy, Input::kGroupGoneToRetry) = {Step::kRestart, State::kInit};
  at(State::kUnhealthy, Input::kStopRequested) = {Step::kStopForRequest, State::kStopped};
  at(State::kUnhealthy, Input::kHurryRequested) = {Step::kHurry, State::kUnhealthy};

  at(State::kStopped, Input::kWorkerStarted) = {Step::kCountStarted, State::kStopped};
  at(State::kStopped, Input::kWorkerDone) = {Step::kCountExit, State::kStopped};
  at(State::kStopped, Input::kWorkerFailed) = {Step::kAddFailure, State::kStopped};
  at(State::kStopped, Input::kWorkerStopped) = {Step::kCountExit, State::kStopped};
  at(State::kStopped, Input::kGroupGone) = {Step::kFinishStopped, State::kStopped};
  at(State::kStopped, Input::kHurryRequested) = {Step::kHurry, State::kStopped};
  return table;
}

constexpr PolicyTable kTable = make_table();

std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g s", to_seconds(duration));
  return text;
}

// The same worker would fail in the same way in every round.
bool repeats(const WorkerExit& exit) {
  if (exit.kind != ExitKind::kNotStarted) return false;
  return exit.error == ENOENT || exit.error == EACCES || exit.error == ENOEXEC;
}

int launcher_code(const WorkerExit& exit) {
  if (exit.kind != ExitKind::kNotStarted) return exit.shell_code();
  return exit.stage == "open" ? kExitCannotLog : kExitCannotStart;
}

AgentEvent event_of(AgentEvent::Kind kind, AgentState state, Instant at) {
  AgentEvent event;
  event.kind = kind;
  event.state = state;
  event.at = at;
  return event;
}

}  // namespace

const PolicyTable& policy_table() { return kTable; }

struct AgentPolicy::Context {
  Instant now;
  std::vector<PolicyAction>* out;

  void act(PolicyAction action) const { out->push_back(std::move(action)); }
};

void AgentPolicy::begin(std::vector<PolicyAction>* out) {
  out->push_back(Join{.round = round_number_, .restart_count = restart_count_});
}

void AgentPolicy::step(const PolicyEvent& event, Instant now, std::vector<PolicyAction>* out) {
  if (finished_) return;
  const PolicyEdge& edge = kTable[index_of(state_)][index_of(classify(event))];
  state_ = edge.next;
  Context context{now, out};
  run(edge.step, event, &context);
}

PolicyInput AgentPolicy::classify(const PolicyEvent& event) const {
  struct Reader {
    const AgentPolicy& policy;
    PolicyInput operator()(const RoundReady&) const { return PolicyInput::kRoundReady; }
    PolicyInput operator()(const RoundFailed&) const { return PolicyInput::kRoundFailed; }
    PolicyInput operator()(const WorkerStarted&) const { return PolicyInput::kWorkerStarted; }
    PolicyInput operator()(const WorkerExited& exited) const {
      if (exited.exit.succeeded()) return PolicyInput::kWorkerDone;
      return exited.exit.stopped_by_us ? PolicyInput::kWorkerStopped : PolicyInput::kWorkerFailed;
    }
    PolicyInput operator()(const GroupGone&) const {
      if (!policy.all_ended()) return PolicyInput::kSupervisionLost;
      return policy.may_restart() ? PolicyInput::kGroupGoneToRetry : PolicyInput::kGroupGone;
    }
    PolicyInput operator()(const StopRequested&) const {
      switch (policy.state_) {
        case AgentState::kInit: return PolicyInput::kStopRequested;
        case AgentState::kHealthy:
          return policy.all_ended() ? PolicyInput::kHurryRequested : PolicyInput::kStopRequested;
        case AgentState::kUnhealthy:
          return policy.may_restart() ? PolicyInput::kStopRequested : PolicyInput::kHurryRequested;
        default: return PolicyInput::kHurryRequested;
      }
    }
    PolicyInput operator()(const SupervisionLost&) const { return PolicyInput::kSupervisionLost; }
  };
  return std::visit(Reader{*this}, event);
}

void AgentPolicy::run(PolicyStep step, const PolicyEvent& event, Context* context) {
  switch (step) {
    case PolicyStep::kIgnore: break;
    case PolicyStep::kStartGroup: start_group(std::get<RoundReady>(event), context); break;
    case PolicyStep::kFailRound: {
      const auto& failed = std::get<RoundFailed>(event);
      finish(failed.exit_code, failed.message, context);
      break;
    }
    case PolicyStep::kCountStarted: count_started(std::get<WorkerStarted>(event), context); break;
    case PolicyStep::kCountExit: count_exit(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kStopForFailure:
      stop_for_failure(std::get<WorkerExited>(event), context);
      break;
    case PolicyStep::kAddFailure:
      add_failure(std::get<WorkerExited>(event));
      count_exit(std::get<WorkerExited>(event), context);
      break;
    case PolicyStep::kRestart: restart(context); break;
    case PolicyStep::kSucceed: finish(0, "", context); break;
    case PolicyStep::kFail: fail(context); break;
    case PolicyStep::kStopForRequest:
      stop_for_request(std::get<StopRequested>(event), context);
      break;
    case PolicyStep::kFinishStopped: finish_stopped(event, context); break;
    case PolicyStep::kHurry: hurry(std::get<StopRequested>(event), context); break;
    case PolicyStep::kLose: {
      const auto* lost = std::get_if<SupervisionLost>(&event);
      finish(kExitSupervisionLost,
             lost != nullptr ? lost->message : "the supervisor's events contradict each other",
             context);
      break;
    }
  }
}

void AgentPolicy::start_group(const RoundReady& event, Context* context) {
  round_ = event.round;
  started_ = 0;
  ended_ = 0;
  failures_.clear();
  context->act(Report{event_of(AgentEvent::Kind::kRoundStarting, state_, context->now)});
  context->act(StartGroup{round_});
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
  AgentEvent report = event_of(AgentEvent::Kind::kWorkerExited, state_, event.exit.at);
  report.local_rank = event.local_rank;
  report.pid = event.pid;
  report.exit = event.exit;
  context->act(Report{std::move(report)});
}

void AgentPolicy::add_failure(const WorkerExited& event) {
  WorkerFailure failure;
  failure.local_rank = event.local_rank;
  failure.rank = round_->workers[static_cast<std::size_t>(event.local_rank)].rank;
  failure.pid = event.pid;
  failure.exit = event.exit;
  const auto later = std::upper_bound(
      failures_.begin(), failures_.end(), failure,
      [](const WorkerFailure& a, const WorkerFailure& b) { return a.exit.at < b.exit.at; });
  failures_.insert(later, std::move(failure));
}

void AgentPolicy::stop_for_failure(const WorkerExited& event, Context* context) {
  add_failure(event);
  count_exit(event, context);
  if (all_ended()) return;
  context->act(StopGroup{SIGTERM, options_.stop_grace});
  AgentEvent report = event_of(AgentEvent::Kind::kStopping, state_, context->now);
  report.message = story_of(cause()) + "; stopping the other workers, which have " +
                   seconds_text(options_.stop_grace);
  context->act(Report{std::move(report)});
}

void AgentPolicy::stop_for_request(const StopRequested& event, Context* context) {
  stop_signal_ = event.signal;
  hurry(event, context);
}

void AgentPolicy::hurry(const StopRequested& event, Context* context) {
  ++stop_requests_;
  const bool at_once = stop_requests_ > 1;
  context->act(StopGroup{at_once ? SIGKILL : event.signal,
                         at_once ? Duration::zero() : options_.stop_grace});
  AgentEvent report = event_of(AgentEvent::Kind::kStopping, state_, context->now);
  report.message = "asked to stop by " + signal_text(event.signal) +
                   (at_once ? " again; killing the workers"
                            : "; the workers have " + seconds_text(options_.stop_grace));
  context->act(Report{std::move(report)});
}

void AgentPolicy::restart(Context* context) {
  ++restart_count_;
  ++round_number_;
  AgentEvent report = event_of(AgentEvent::Kind::kRestarting, state_, context->now);
  report.message = story_of(cause()) + "; restarting, " +
                   std::to_string(options_.max_restarts - restart_count_) + " of " +
                   std::to_string(options_.max_restarts) + " restarts left";
  context->act(Report{std::move(report)});
  context->act(Join{.round = round_number_, .restart_count = restart_count_});
}

void AgentPolicy::fail(Context* context) {
  const WorkerFailure& failure = cause();
  std::string message = story_of(failure);
  if (repeats(failure.exit)) {
    message += "; a restart would not help";
  } else if (options_.max_restarts > 0) {
    message += "; none of " + std::to_string(options_.max_restarts) + " restarts is left";
  }
  finish(launcher_code(failure.exit), std::move(message), context);
}

void AgentPolicy::finish_stopped(const PolicyEvent& event, Context* context) {
  // A request that found nothing to stop is the first and ends the agent by itself.
  if (const auto* request = std::get_if<StopRequested>(&event)) stop_signal_ = request->signal;
  finish(kSignalBase + stop_signal_, "stopped by " + signal_text(stop_signal_), context);
}

void AgentPolicy::finish(int exit_code, std::string message, Context* context) {
  finished_ = true;
  AgentResult result;
  result.state = state_;
  result.exit_code = exit_code;
  result.message = std::move(message);
  result.failures = std::move(failures_);
  context->act(Finish{std::move(result)});
}

bool AgentPolicy::may_restart() const {
  return state_ == AgentState::kUnhealthy && restart_count_ < options_.max_restarts &&
         !repeats(cause().exit);
}

bool AgentPolicy::all_ended() const {
  return round_ != nullptr && ended_ == round_->workers.size();
}

// A failure that repeats itself in every round explains the end better than one that may have been
// chance; otherwise the earliest is the cause.
const WorkerFailure& AgentPolicy::cause() const {
  ELASTIC_CHECK(!failures_.empty());
  for (const WorkerFailure& failure : failures_) {
    if (repeats(failure.exit)) return failure;
  }
  return failures_.front();
}

std::string AgentPolicy::story_of(const WorkerFailure& failure) const {
  std::string who =
      "rank " + std::to_string(failure.rank) + " (local rank " + std::to_string(failure.local_rank);
  if (failure.pid > 0) who += ", pid " + std::to_string(failure.pid);
  return who + ") " + failure.exit.describe();
}

}  // namespace core
}  // namespace elastic
