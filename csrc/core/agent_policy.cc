#include "core/agent_policy.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "core/check.h"
#include "core/rank_assign.h"
#include "core/signal_name.h"

// Theory of operation. The states are those that torch's agent names, described at AgentState.
//
// An event is first read in the light of what is known (classify: was that exit a failure? is the
// round one that we know already?), which gives one of the inputs; state and input then name one
// edge of the table, and with it the step to take and the next state. All decisions are in those
// two places; the steps only keep the books and write the actions. A pair that cannot occur leads
// to UNKNOWN: whoever sends it is out of step with us, and workers that nobody understands must not
// go on.
//
// What happens to the job is decided elsewhere. A node whose worker failed says so and goes on
// until it is told: to stop and join again, or that the job is over. The same holds for a node
// whose workers are done, which waits for the others at the barrier. Only three things the agent
// does by itself: it leaves when it is asked to stop; it ends the job when a program cannot be
// executed, which would repeat itself in every round; and it stops the other workers of a broken
// gang when nobody answers.
//
// A round ends here with GroupGone and never earlier: not even the end of every worker may start
// the next one, since what they left behind could still hold a port or a device. The result is
// settled when it is heard, and told when the workers are gone. The failures of one round are
// collected until then, and the one that the kernel told first is the cause of them all; an earlier
// one than the one that was said is said, too.
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
static_assert(index_of(PolicyInput::kTick) + 1 == kPolicyInputs);

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
    for (const Input input : {Input::kStale, Input::kTick}) {
      table[state][index_of(input)] = {Step::kIgnore, static_cast<State>(state)};
    }
    table[state][index_of(Input::kNote)] = {Step::kTell, static_cast<State>(state)};
  }
  table[index_of(State::kUnknown)].fill({Step::kIgnore, State::kUnknown});

  at(State::kInit, Input::kFound) = {Step::kJoin, State::kInit};
  at(State::kInit, Input::kRound) = {Step::kStartGroup, State::kHealthy};
  at(State::kInit, Input::kOrderedIdle) = {Step::kJoin, State::kInit};
  at(State::kInit, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kInit, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kInit, Input::kStopRequested) = {Step::kLeave, State::kStopped};

  at(State::kHealthy, Input::kOrdered) = {Step::kObey, State::kUnhealthy};
  at(State::kHealthy, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kHealthy, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kHealthy, Input::kWorkerStarted) = {Step::kCountStarted, State::kHealthy};
  at(State::kHealthy, Input::kWorkerDone) = {Step::kCountExit, State::kHealthy};
  at(State::kHealthy, Input::kWorkerFailed) = {Step::kAddFailure, State::kUnhealthy};
  at(State::kHealthy, Input::kGroupGone) = {Step::kSayDone, State::kSucceeded};
  at(State::kHealthy, Input::kStopRequested) = {Step::kLeave, State::kStopped};
  at(State::kHealthy, Input::kHurryRequested) = {Step::kHurry, State::kHealthy};

  at(State::kUnhealthy, Input::kOrdered) = {Step::kObey, State::kUnhealthy};
  at(State::kUnhealthy, Input::kOrderedIdle) = {Step::kJoin, State::kInit};
  at(State::kUnhealthy, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kUnhealthy, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kUnhealthy, Input::kWorkerStarted) = {Step::kCountStarted, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerDone) = {Step::kCountExit, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerFailed) = {Step::kAddFailure, State::kUnhealthy};
  at(State::kUnhealthy, Input::kWorkerStopped) = {Step::kCountExit, State::kUnhealthy};
  at(State::kUnhealthy, Input::kGroupGone) = {Step::kSayGone, State::kUnhealthy};
  at(State::kUnhealthy, Input::kGroupGoneToJoin) = {Step::kRejoin, State::kInit};
  at(State::kUnhealthy, Input::kStopRequested) = {Step::kLeave, State::kStopped};
  at(State::kUnhealthy, Input::kTick) = {Step::kStopUntold, State::kUnhealthy};

  // A done node waits for the others and can be called back.
  at(State::kSucceeded, Input::kOrderedIdle) = {Step::kJoin, State::kInit};
  at(State::kSucceeded, Input::kSuccess) = {Step::kEnd, State::kSucceeded};
  at(State::kSucceeded, Input::kEnd) = {Step::kEnd, State::kFailed};
  at(State::kSucceeded, Input::kStopRequested) = {Step::kLeaveDone, State::kSucceeded};
  at(State::kSucceeded, Input::kTick) = {Step::kLeaveDone, State::kSucceeded};

  // The end is settled, and what is left of the workers is waited for.
  for (const State state : {State::kStopped, State::kSucceeded, State::kFailed}) {
    at(state, Input::kOrdered) = {Step::kIgnore, state};
    at(state, Input::kWorkerStarted) = {Step::kCountStarted, state};
    at(state, Input::kWorkerDone) = {Step::kCountExit, state};
    at(state, Input::kWorkerFailed) = {Step::kAddFailure, state};
    at(state, Input::kWorkerStopped) = {Step::kCountExit, state};
    at(state, Input::kGroupGone) = {Step::kFinish, state};
    at(state, Input::kHurryRequested) = {Step::kHurry, state};
  }
  for (const State state : {State::kStopped, State::kFailed}) {
    at(state, Input::kRound) = {Step::kIgnore, state};
    at(state, Input::kSuccess) = {Step::kIgnore, state};
    at(state, Input::kEnd) = {Step::kIgnore, state};
  }
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

int exit_code_of(const JobResult& job) {
  if (job.outcome == JobOutcome::kSucceeded) return 0;
  if (job.cause == JobCause::kNodeLost || job.cause == JobCause::kTooFewNodes) return kExitNodeLost;
  return job.exit_code != 0 ? job.exit_code : kExitJobClosed;
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
  AgentState from;  // the state before the step
  std::vector<PolicyAction>* out;

  void act(PolicyAction action) const { out->push_back(std::move(action)); }
  void report(AgentEvent::Kind kind, AgentState state, std::string message) const {
    AgentEvent event = event_of(kind, state, now);
    event.message = std::move(message);
    act(Report{std::move(event)});
  }
};

void AgentPolicy::step(const PolicyEvent& event, Instant now, std::vector<PolicyAction>* out) {
  if (is_finished_) return;
  if (std::holds_alternative<PolicyTick>(event)) {
    if (!deadline_ || now < *deadline_) return;
    deadline_.reset();
  }
  const PolicyEdge& edge = kTable[index_of(state_)][index_of(classify(event))];
  Context context{now, std::exchange(state_, edge.next), out};
  run(edge.step, event, &context);
}

struct AgentPolicy::Reader {
  const AgentPolicy& policy;

  PolicyInput operator()(const RendezvousFound&) const { return PolicyInput::kFound; }
  PolicyInput operator()(const Note&) const { return PolicyInput::kNote; }
  PolicyInput operator()(const RendezvousLost&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const LocalFault&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const rdzv::Round& round) const {
    const bool is_known = round.record->round <= policy.self_.highest_round;
    return is_known ? PolicyInput::kStale : PolicyInput::kRound;
  }
  PolicyInput operator()(const rdzv::Restart& restart) const {
    const bool is_over = policy.round_ != nullptr && restart.round < policy.round_->round;
    return is_over ? PolicyInput::kStale : ordered();
  }
  PolicyInput operator()(const rdzv::Evicted&) const { return ordered(); }
  PolicyInput operator()(const rdzv::Refused&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const rdzv::TimedOut&) const { return PolicyInput::kEnd; }
  PolicyInput operator()(const rdzv::Closed& closed) const {
    const bool is_success = closed.result->outcome == JobOutcome::kSucceeded;
    return is_success ? PolicyInput::kSuccess : PolicyInput::kEnd;
  }
  PolicyInput operator()(const WorkerStarted&) const { return PolicyInput::kWorkerStarted; }
  PolicyInput operator()(const WorkerExited& exited) const {
    if (exited.exit.succeeded()) return PolicyInput::kWorkerDone;
    return exited.exit.stopped_by_us ? PolicyInput::kWorkerStopped : PolicyInput::kWorkerFailed;
  }
  PolicyInput operator()(const GroupGone&) const {
    if (!policy.has_workers_ || !policy.all_ended()) return PolicyInput::kSupervisionLost;
    return policy.is_to_join_ ? PolicyInput::kGroupGoneToJoin : PolicyInput::kGroupGone;
  }
  PolicyInput operator()(const StopRequested&) const {
    switch (policy.state_) {
      case AgentState::kInit:
      case AgentState::kUnhealthy: return PolicyInput::kStopRequested;
      case AgentState::kHealthy:
        return policy.all_ended() ? PolicyInput::kHurryRequested : PolicyInput::kStopRequested;
      case AgentState::kSucceeded:
        return policy.has_workers_ ? PolicyInput::kHurryRequested : PolicyInput::kStopRequested;
      default: return PolicyInput::kHurryRequested;
    }
  }
  PolicyInput operator()(const SupervisionLost&) const { return PolicyInput::kSupervisionLost; }
  PolicyInput operator()(const PolicyTick&) const { return PolicyInput::kTick; }

  PolicyInput ordered() const {
    return policy.has_workers_ ? PolicyInput::kOrdered : PolicyInput::kOrderedIdle;
  }
};

PolicyInput AgentPolicy::classify(const PolicyEvent& event) const {
  return std::visit(Reader{*this}, event);
}

void AgentPolicy::run(PolicyStep step, const PolicyEvent& event, Context* context) {
  switch (step) {
    case PolicyStep::kIgnore: break;
    case PolicyStep::kTell:
      context->report(AgentEvent::Kind::kNote, state_, std::get<Note>(event).sentence);
      break;
    case PolicyStep::kJoin: join(event, context); break;
    case PolicyStep::kStartGroup: start_group(std::get<rdzv::Round>(event), context); break;
    case PolicyStep::kObey: obey(event, context); break;
    case PolicyStep::kEnd: end(event, context); break;
    case PolicyStep::kCountStarted: count_started(std::get<WorkerStarted>(event), context); break;
    case PolicyStep::kCountExit: count_exit(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kAddFailure: add_failure(std::get<WorkerExited>(event), context); break;
    case PolicyStep::kSayDone: say_done(context); break;
    case PolicyStep::kSayGone: say_gone(context); break;
    case PolicyStep::kRejoin:
      say_gone(context);
      say_join(context);
      break;
    case PolicyStep::kFinish:
      say_gone(context);
      finish(context);
      break;
    case PolicyStep::kLeave: leave(std::get<StopRequested>(event), context); break;
    case PolicyStep::kLeaveDone: leave_done(event, context); break;
    case PolicyStep::kHurry: hurry(std::get<StopRequested>(event), context); break;
    case PolicyStep::kStopUntold:
      stop_group(self_.failure_grace,
                 story_of(cause()) + "; nobody answers; stopping the other workers", context);
      break;
    case PolicyStep::kLose: lose(event, context); break;
  }
}

void AgentPolicy::join(const PolicyEvent& event, Context* context) {
  if (const auto* found = std::get_if<RendezvousFound>(&event)) {
    self_.name = found->name;
    self_.address = found->address;
  } else {
    const std::string reason = hear_order(event);
    // A node whose workers run no more has nothing to stop, but people want to know why it goes on.
    if (context->from == AgentState::kSucceeded) {
      context->report(AgentEvent::Kind::kNote, state_, "called back: " + reason);
    }
  }
  say_join(context);
}

void AgentPolicy::say_join(Context* context) {
  has_joined_ = true;
  is_to_join_ = false;
  deadline_.reset();
  context->act(Say{rdzv::Join{self_, settings_}});
}

void AgentPolicy::start_group(const rdzv::Round& event, Context* context) {
  if (round_ != nullptr) {
    context->report(AgentEvent::Kind::kRestarting, AgentState::kInit,
                    why_it_ended_ + restart_text(*event.record));
  }
  round_ = std::make_shared<const RoundInfo>(round_info(*event.record, event.own));
  self_.highest_round = round_->round;
  self_.previous_rank = round_->group_rank;
  has_workers_ = true;
  owes_gone_ = true;
  is_stopping_ = false;
  started_ = 0;
  ended_ = 0;
  failures_.clear();
  context->act(StartGroup{round_});
}

// What the order says to people. Notes what it means for the next join.
std::string AgentPolicy::hear_order(const PolicyEvent& event) {
  std::string reason;
  if (const auto* restart = std::get_if<rdzv::Restart>(&event)) {
    self_.highest_round = std::max(self_.highest_round, restart->round);
    reason = restart->reason;
  } else {
    const auto& evicted = std::get<rdzv::Evicted>(event);
    self_.highest_round = std::max(self_.highest_round, evicted.round);
    owes_gone_ = false;
    reason = "the others went on without this node: " + evicted.reason;
  }
  why_it_ended_ = failures_.empty() ? reason : story_of(cause());
  return reason;
}

void AgentPolicy::obey(const PolicyEvent& event, Context* context) {
  const auto* restart = std::get_if<rdzv::Restart>(&event);
  const std::string reason = hear_order(event);
  is_to_join_ = true;
  deadline_.reset();
  stop_group(restart != nullptr ? restart->grace : self_.failure_grace,
             failures_.empty() ? reason + "; stopping the workers"
                               : why_it_ended_ + "; stopping the other workers",
             context);
}

void AgentPolicy::end(const PolicyEvent& event, Context* context) {
  is_to_join_ = false;
  deadline_.reset();
  Duration grace = self_.stop_grace;
  if (const auto* closed = std::get_if<rdzv::Closed>(&event)) {
    settle(*closed->result);
    if (closed->result->outcome == JobOutcome::kFailed) grace = self_.failure_grace;
  } else if (const auto* fault = std::get_if<LocalFault>(&event)) {
    result_.exit_code = fault->exit_code;
    result_.message = fault->message;
    has_workers_ = false;
    say_leave(fault->message, context);
  } else if (const auto* lost = std::get_if<RendezvousLost>(&event)) {
    result_.exit_code = lost->exit_code;
    result_.message = lost->message;
    owes_gone_ = false;
  } else if (const auto* refused = std::get_if<rdzv::Refused>(&event)) {
    result_.exit_code = kExitRefused;
    result_.message = std::string(refused->error.message());
    owes_gone_ = false;
  } else {
    result_.exit_code = kExitJoinTimedOut;
    result_.message = std::get<rdzv::TimedOut>(event).sentence;
    owes_gone_ = false;
  }
  if (!has_workers_) {
    finish(context);
    return;
  }
  const std::string why = result_.message.empty() ? "the job is over" : result_.message;
  if (is_stopping_) context->report(AgentEvent::Kind::kNote, state_, why);
  stop_group(grace, why + "; stopping the workers", context);
}

// The job's result as this node tells it: in its own words if the cause was here.
void AgentPolicy::settle(const JobResult& job) {
  result_.job = job;
  result_.exit_code = exit_code_of(job);
  if (job.outcome == JobOutcome::kSucceeded) {
    if (!job.lost.empty()) result_.message = job.message;
    return;
  }
  result_.message = job.message;
  if (job.cause != JobCause::kWorker || job.node != self_.name || failures_.empty()) return;
  const WorkerFailure& failure = cause();
  if (failure.rank != job.rank) return;
  result_.message = story_of(failure);
  if (repeats(failure.exit)) {
    result_.message += "; a restart would not help";
  } else if (settings_.max_restarts > 0) {
    result_.message += "; none of " + std::to_string(settings_.max_restarts) + " restarts is left";
  }
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

void AgentPolicy::add_failure(const WorkerExited& event, Context* context) {
  count_exit(event, context);
  WorkerFailure failure;
  failure.local_rank = event.local_rank;
  failure.rank = round_->workers[static_cast<std::size_t>(event.local_rank)].rank;
  failure.pid = event.pid;
  failure.exit = event.exit;
  const auto later = std::upper_bound(
      failures_.begin(), failures_.end(), failure,
      [](const WorkerFailure& a, const WorkerFailure& b) { return a.exit.at < b.exit.at; });
  failures_.insert(later, std::move(failure));
  const bool is_cause = cause().local_rank == event.local_rank;
  if (state_ == AgentState::kUnhealthy && owes_gone_ && is_cause) say_failure(cause(), context);
  if (context->from == AgentState::kHealthy) {
    why_it_ended_ = story_of(cause());
    deadline_ = add_saturating(context->now, kOrderPatience);
  }
}

void AgentPolicy::say_failure(const WorkerFailure& failure, Context* context) {
  const std::string how = failure.exit.describe();
  if (!repeats(failure.exit)) {
    context->act(Say{rdzv::Failed{self_.id,
                                  round_->round,
                                  {.local_rank = failure.local_rank,
                                   .rank = failure.rank,
                                   .exit_code = launcher_code(failure.exit),
                                   .message = how,
                                   .at = failure.exit.at}}});
    return;
  }
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  result.cause = JobCause::kWorker;
  result.exit_code = launcher_code(failure.exit);
  result.rank = failure.rank;
  result.node = self_.name;
  result.message = "rank " + std::to_string(failure.rank) + " on " + self_.name + " " + how +
                   "; a restart would not help";
  context->act(Say{rdzv::Close{self_.id, std::move(result)}});
}

void AgentPolicy::say_done(Context* context) {
  has_workers_ = false;
  owes_gone_ = false;
  context->act(Say{rdzv::Done{self_.id, round_->round}});
  if (stop_requests_ > 0) {
    leave_done(PolicyTick{}, context);
  } else if (exit_barrier_timeout_) {
    deadline_ = add_saturating(context->now, *exit_barrier_timeout_);
  }
}

void AgentPolicy::say_gone(Context* context) {
  has_workers_ = false;
  deadline_.reset();
  if (std::exchange(owes_gone_, false)) {
    context->act(Say{rdzv::Gone{self_.id, round_->round}});
  }
}

void AgentPolicy::say_leave(const std::string& reason, Context* context) {
  owes_gone_ = false;
  if (has_joined_) context->act(Say{rdzv::Leave{self_.id, reason}});
}

void AgentPolicy::stop_group(Duration grace, const std::string& why, Context* context) {
  if (!has_workers_ || all_ended() || std::exchange(is_stopping_, true)) return;
  context->act(StopGroup{SIGTERM, grace});
  context->report(AgentEvent::Kind::kStopping, state_, why + ", which have " + seconds_text(grace));
}

void AgentPolicy::leave(const StopRequested& event, Context* context) {
  const std::string what = "stopped by " + signal_text(event.signal);
  result_.exit_code = kSignalBase + event.signal;
  result_.message = what;
  if (!failures_.empty() && has_workers_) {
    result_.message += "; before that " + story_of(cause());
  }
  deadline_.reset();
  is_to_join_ = false;
  say_leave(what, context);
  if (has_workers_) {
    is_stopping_ = true;
    hurry(event, context);
  } else {
    finish(context);
  }
}

void AgentPolicy::leave_done(const PolicyEvent& event, Context* context) {
  const auto* request = std::get_if<StopRequested>(&event);
  const bool is_asked = request != nullptr || stop_requests_ > 0;
  say_leave(is_asked ? "asked to stop when its workers had succeeded"
                     : "its workers have succeeded, and it has waited long enough for the others",
            context);
  finish(context);
}

void AgentPolicy::hurry(const StopRequested& event, Context* context) {
  ++stop_requests_;
  const bool at_once = stop_requests_ > 1;
  context->act(
      StopGroup{at_once ? SIGKILL : event.signal, at_once ? Duration::zero() : self_.stop_grace});
  context->report(AgentEvent::Kind::kStopping, state_,
                  "asked to stop by " + signal_text(event.signal) +
                      (at_once ? " again; killing the workers"
                               : "; the workers have " + seconds_text(self_.stop_grace)));
}

void AgentPolicy::lose(const PolicyEvent& event, Context* context) {
  const auto* lost = std::get_if<SupervisionLost>(&event);
  result_.exit_code = kExitSupervisionLost;
  result_.message =
      lost != nullptr ? lost->message : "what the agent was told contradicts what it knows";
  say_leave(result_.message, context);
  finish(context);
}

void AgentPolicy::finish(Context* context) {
  is_finished_ = true;
  deadline_.reset();
  result_.state = state_;
  result_.failures = std::move(failures_);
  context->act(Finish{std::move(result_)});
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

std::string AgentPolicy::restart_text(const RoundRecord& record) const {
  std::string text = "; restarting";
  if (record.nodes > 1 || round_->group_world_size > 1) {
    text += " with " + std::to_string(record.nodes) + (record.nodes == 1 ? " node" : " nodes");
  }
  if (settings_.max_restarts > 0) {
    text += ", " + std::to_string(settings_.max_restarts - record.restarts) + " of " +
            std::to_string(settings_.max_restarts) + " restarts left";
  }
  return text;
}

}  // namespace core
}  // namespace elastic
