#pragma once

// The decisions of one node's agent: when to join a round, start and stop its workers, report how
// they ended, and with which result to finish.
//
// It follows the rendezvous (rendezvous_machine.h), which alone decides about rounds, restarts and
// the job's result. Pure: the same calls in the same order give the same actions. Not thread-safe;
// the owner serialises calls and executes the actions in order. If an action fails, the owner feeds
// LocalFault or SupervisionLost.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/rendezvous/participant.h"
#include "core/rendezvous/rendezvous_events.h"
#include "elastic/agent.h"

namespace elastic::core {

// The rendezvous is reachable. Fed once, before any other event of the rendezvous.
struct RendezvousReady {
  std::string name;     // of this node, in messages
  std::string address;  // where the other nodes reach it
};
// A progress message for the log.
struct Progress {
  std::string message;
  std::optional<Instant> deadline = {};  // the time that follows the message's ", gives up"
};
// The rendezvous is unreachable, and reconnecting was given up.
struct RendezvousLost {
  int exit_code = kExitCoordinatorLost;
  std::string message;
};
// This node cannot take part in any round: it has no port or no files. No worker was started.
struct LocalFault {
  int exit_code = kExitInternal;
  std::string message;
};
struct WorkerStarted {
  int local_rank = 0;
  int pid = -1;
  Instant at;
};
// What is known about a failure besides the exit.
struct FailureFacts {
  // When the worker reported the error that ended it; nullopt: nothing precedes its exit.
  std::optional<Instant> reported_at = {};
  FailureEvidence evidence = {};
  std::string output = {};       // the last lines of its stderr, for this node's report
  std::string fingerprint = {};  // equal for failures that look the same
};
struct WorkerExited {
  int local_rank = 0;
  int pid = -1;
  WorkerExit exit;
  FailureFacts facts = {};  // of a failure
};
// More is known about a failed worker; or a worker had failed before it was stopped, and may still
// run (its exit is kUnknown).
struct FailureFound {
  int local_rank = 0;
  int pid = -1;
  WorkerExit exit;
  FailureFacts facts;
};
// The worker can continue in another round.
struct WorkerCapable {
  int local_rank = 0;
};
// The worker has left the collectives of the round that was cut.
struct WorkerLeft {
  int local_rank = 0;
};
// Every rank of the round waits at this step, where this node leaves the job: its workers were told
// to stop there.
struct LeaveAtStep {
  std::int64_t step = 0;
};
// Every worker of the round has ended and nothing of their process groups is left.
struct GroupGone {};
struct StopRequested {
  int signal = 0;
};
// Worker supervision failed: the guardian died, or an action was applied only in part.
struct SupervisionLost {
  std::string message;
};
// The time of next_deadline() was reached.
struct PolicyTick {};

using PolicyEvent =
    std::variant<RendezvousReady, Progress, RendezvousLost, LocalFault, rdzv::Round, rdzv::Restart,
                 rdzv::Evicted, rdzv::Refused, rdzv::TimedOut, rdzv::Closed, WorkerStarted,
                 WorkerExited, FailureFound, WorkerCapable, WorkerLeft, LeaveAtStep, GroupGone,
                 StopRequested, SupervisionLost, PolicyTick>;

// Send to the rendezvous. A Join lacks its store_port: the owner binds one and fills it in.
struct Send {
  NodeStatement statement;
};
struct StartGroup {
  std::shared_ptr<const RoundInfo> round;
};
// Start the workers before this node joins. They wait for their first round.
struct PrepareGroup {
  NodeInfo node;  // this one, which joins later
};
// Tell the running workers to leave the collectives of their round, which is over.
struct CutGroup {
  std::uint64_t round = 0;
};
// The workers that have left their round, or wait for their first one, take part in this one.
struct ContinueGroup {
  std::shared_ptr<const RoundInfo> round;
  std::string reason;  // why the last round ended
};
// Signal the running workers, and kill the remaining processes after `grace`. A later StopGroup may
// only shorten the time.
struct StopGroup {
  int signal = 0;
  Duration grace{};
};
// Deliver to the user. Kind, state, local rank, pid, exit, message and time are set.
struct Report {
  AgentEvent event;
};
inline AgentEvent event_of(AgentEvent::Kind kind, AgentState state, Instant at) {
  AgentEvent event;
  event.kind = kind;
  event.state = state;
  event.at = at;
  return event;
}
// Shut down; `result` is final. Its failures have no paths yet.
struct Finish {
  AgentResult result;
};
using PolicyAction = std::variant<Send, StartGroup, PrepareGroup, CutGroup, ContinueGroup,
                                  StopGroup, Report, Finish>;

// What an event means, given the policy's data: the columns of the transition table.
enum class PolicyInput : std::uint8_t {
  kReady,
  kReadyToPrepare,  // and the workers are started before this node joins
  kProgress,
  kRound,            // a new round
  kRoundForKept,     // a new round, and the workers of the last one wait for it
  kStale,            // of a round that is over, or a repetition
  kStopOrdered,      // an order to stop the workers (restart, eviction), while some exist
  kStopOrderedIdle,  // the same order, while no worker exists, or those that do wait for a round
  kCutOrdered,       // an order to end the round, and every worker can continue in the next one
  kSuccess,          // the job succeeded; every node receives this
  kEnd,              // the job, or this node's membership, ended without success
  kWorkerStarted,
  kWorkerDone,     // exited with code 0
  kWorkerFailed,   // ended otherwise, and the agent had not stopped it
  kNodeBad,        // the same, with a code that means that the node is bad
  kWorkerStopped,  // ended after the agent had stopped it
  kFailureFound,
  kWorkerCapable,
  kWorkerLeft,
  kAllLeft,          // the last worker has left the round that was cut, or waits for its first one
  kPreparedExit,     // a worker ended before this node had joined
  kPreparedGone,     // the last one did
  kKeptExit,         // a worker ended while it waited for the next round
  kKeptGone,         // the last one did
  kGroupEnded,       // and no order to join again was received
  kGroupGoneToJoin,  // and an order to join again was received
  kStopRequested,    // changes the outcome
  kKillRequested,    // a stop request when the outcome is fixed: only shortens the grace period
  kSupervisionLost,
  kTick,        // the deadline passed
  kCutExpired,  // the same, while the workers leave their round, or are prepared
  kReleased,    // the node leaves at an agreed step
};
inline constexpr std::size_t kPolicyInputs = 32;
inline constexpr std::size_t kAgentStates = 7;

// What a transition does.
enum class PolicyStep : std::uint8_t {
  kIgnore,
  kReport,
  kJoin,
  kPrepareGroup,
  kJoinPrepared,
  kNotePreparedExit,
  kAbandonPrepared,
  kJoinUnprepared,
  kStartGroup,
  kContinueGroup,
  kStopWorkers,
  kCutWorkers,
  kAbandonCut,
  kCountCapable,
  kCountLeft,
  kKeepWorkers,
  kNoteKeptExit,
  kDropKept,
  kEnd,
  kCountStarted,
  kCountExit,
  kAddFailure,
  kLeaveBadNode,
  kAddEvidence,
  kSendDone,
  kSendGone,
  kRejoin,
  kFinish,
  kLeave,
  kLeaveDone,
  kLeaveAtStep,
  kKill,
  kStopUnordered,
  kLose,
};

struct PolicyEdge {
  PolicyStep step = PolicyStep::kIgnore;
  AgentState next = AgentState::kInit;
};

using PolicyTable = std::array<std::array<PolicyEdge, kPolicyInputs>, kAgentStates>;
// Indexed by AgentState and PolicyInput.
const PolicyTable& policy_table();
const PolicyEdge& edge_of(AgentState state, PolicyInput input);

// After a node reported a failed worker it waits this long for an order. Then it stops its other
// workers without one: their collectives are broken anyway.
inline constexpr Duration kOrderTimeout = std::chrono::seconds(1);

struct AgentPolicyOptions {
  NodeInfo node;  // without name, address and store_port
  JobSettings settings;
  AgentOptions agent = {};  // REQUIRES: inplace_grace, if inplace_prepare is set
};

class AgentPolicy {
 public:
  explicit AgentPolicy(const AgentPolicyOptions& options)
      : settings_(options.settings),
        agent_(options.agent),
        participant_(options.node, options.settings) {}

  // Handles one event and appends the actions to execute, in order. After Finish, events have no
  // effect.
  void step(const PolicyEvent& event, Instant now, std::vector<PolicyAction>* out);
  // When step(PolicyTick{}) must be called; nullopt: never.
  std::optional<Instant> next_deadline() const { return deadline_; }

  AgentState state() const { return state_; }
  const NodeId& node() const { return self().id; }
  // Whether processes of this node's workers exist, or may.
  bool has_processes() const { return participant_.has_workers() || is_kept_ || is_preparing_; }
  // And its workers have not ended yet.
  bool is_evicted() const {
    return participant_.state() == ParticipantState::kReleased && participant_.must_rejoin();
  }
  // Every worker runs, and can take part in another round.
  bool can_continue() const { return can_cut(); }
  // Its workers have succeeded, and it waits for the workers of the other nodes.
  bool is_done() const { return state_ == AgentState::kSucceeded && !result_.job; }
  // By a signal, or because the job is over.
  bool is_being_stopped() const {
    return stop_requests_ > 0 || state_ == AgentState::kFailed || result_.job;
  }
  // What `event` means in the current state.
  PolicyInput classify(const PolicyEvent& event) const;

 private:
  struct Context;
  struct Reader;

  void run(PolicyStep step, const PolicyEvent& event, Context* context);
  void report_progress(const Progress& progress, Context* context);
  void join(const PolicyEvent& event, Context* context);
  void start_group(const rdzv::Round& event, Context* context);
  void continue_group(const rdzv::Round& event, Context* context);
  void begin_round(const rdzv::Round& event, Context* context);
  void report_failure(Context* context);
  void stop_workers(const PolicyEvent& event, Context* context);
  void cut_workers(const PolicyEvent& event, Context* context);
  void abandon_cut(const std::string& why, Context* context);
  void keep_workers(Context* context);
  void note_kept_exit(const WorkerExited& event, Context* context);
  void fail_kept(const WorkerExited& event, Context* context);
  void drop_kept(Context* context);
  std::string order_reason(const PolicyEvent& event, Context* context);
  void end(const PolicyEvent& event, Context* context);
  void set_result(const JobResult& job);
  void set_stopped();
  void count_started(const WorkerStarted& event, Context* context);
  void count_exit(const WorkerExited& event, Context* context);
  void add_failure(const WorkerExited& event, Context* context);
  void note_failure(const WorkerExited& event, Context* context);
  WorkerFailure failure_of(const WorkerExited& event);
  WorkerFailure kept_failure_of(const WorkerExited& event);
  void await_order(Context* context);
  void leave_bad_node(const WorkerExited& event, Context* context);
  void add_evidence(const FailureFound& event, Context* context);
  WorkerFailure take_failure(int local_rank, int pid);
  void insert_failure(WorkerFailure failure);
  void update_failure(WorkerFailure* failure, const WorkerExit& exit, const FailureFacts& facts);
  int cause_rank() const;
  void send_cause_after(int changed, int before, Context* context);
  void send_cause(Context* context);
  void send_failure(const WorkerFailure& failure, Context* context);
  bool means_bad_node(const WorkerExit& exit) const;
  static bool is_failure(const WorkerExit& exit);
  static bool has_stopped_at_step(const WorkerExit& exit);
  const char* why_final(const WorkerFailure& failure) const;
  std::string repetition_of(const WorkerFailure& failure) const;
  void end_streak();
  void send_done(Context* context);
  void send_gone(Context* context);
  void request_join(Context* context);
  void prepare_group(const RendezvousReady& event, Context* context);
  void join_prepared(Context* context);
  void note_prepared_exit(const WorkerExited& event, Context* context);
  void abandon_prepared(const std::string& why, Context* context);
  void join_unprepared(Context* context);
  void update(const ParticipantEvent& event, Context* context);
  void stop_group(Duration grace, const std::string& why, Context* context);
  void leave(const StopRequested& event, Context* context);
  void leave_done(Context* context);
  void leave_at(std::int64_t step, Context* context);
  void note_failed_leave(const std::string& what, int exit_code);
  void kill(const StopRequested& event, Context* context);
  void lose(const PolicyEvent& event, Context* context);
  void finish(Context* context);
  bool all_ended() const;
  // Whether the workers have left their round and wait for the next one.
  bool is_waiting() const { return is_kept_ && state_ == AgentState::kInit; }
  bool can_cut() const;
  const NodeInfo& self() const { return participant_.node(); }
  // The node's periods as the rendezvous knows them include the time of a cut.
  Duration without_cut(Duration grace) const {
    return std::max(grace - agent_.inplace_grace.value_or(Duration::zero()), Duration::zero());
  }
  Duration stop_grace() const { return without_cut(self().stop_grace); }
  Duration failure_grace() const { return without_cut(self().failure_grace); }
  // The failure that ended the round on this node. REQUIRES: there is one.
  const WorkerFailure& cause() const;
  std::string restart_text(const RoundRecord& record) const;

  const JobSettings settings_;
  const AgentOptions agent_;

  AgentState state_ = AgentState::kInit;
  Participant participant_;
  bool is_finished_ = false;
  std::optional<Instant> deadline_;
  AgentResult result_;  // reported when the workers' processes have ended
  int stop_requests_ = 0;
  int stop_signal_ = 0;  // of the last stop request

  // ---- The current round.
  std::shared_ptr<const RoundInfo> round_;
  bool is_stopping_ = false;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
  std::vector<bool> capable_;  // by local rank: can continue in another round
  std::vector<bool> left_;     // likewise: has left the round that was cut
  bool is_cutting_ = false;
  Duration cut_grace_{};       // of the stop that follows, if they do not leave
  bool is_kept_ = false;       // the workers have left their round, and wait for the next one
  bool is_preparing_ = false;  // the workers were started without a round, before the first join
  std::vector<WorkerExited> kept_exits_;  // of those that ended meanwhile
  std::vector<WorkerFailure> failures_;
  std::int64_t stop_step_ = -1;  // at which a worker was told to stop, and has exited
  std::string end_reason_;
  bool is_own_reason_ = false;  // the reason is a failure on this node
  AgentRoundEnd round_end_;
  Instant round_began_;

  // Rounds in a row that ended by the same failure on this node.
  std::string last_fingerprint_;
  int same_failures_ = 0;
  Duration longest_round_{};
};

// What a step of the policy works with, for agent_policy.cc and agent_policy_decisions.cc.
struct AgentPolicy::Context {
  Instant now;
  AgentState from;  // the state before the step
  std::vector<PolicyAction>* out;

  template <typename Action>
  void act(Action action) const {
    out->emplace_back(std::in_place_type<Action>, std::move(action));
  }
  void report(AgentEvent::Kind kind, AgentState state, std::string message) const {
    AgentEvent event = event_of(kind, state, now);
    event.message = std::move(message);
    act(Report{std::move(event)});
  }
};

}  // namespace elastic::core
