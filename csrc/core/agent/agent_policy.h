#pragma once

// What one node's agent does about what happens to it and what it is told: when to ask for a round,
// start its workers, stop them, say what has become of them, and with which result to end.
//
// It follows the rendezvous (elastic/rendezvous.h), which alone decides about rounds, restarts and
// the job's result. Pure: the same calls in the same order give the same actions. Not thread-safe;
// the owner serialises calls and carries the actions out in order. An action that cannot be carried
// out is answered with LocalFault or SupervisionLost.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/rendezvous/participant.h"
#include "elastic/agent.h"
#include "elastic/rendezvous.h"

namespace elastic::core {

// The way to the rendezvous is known. Once, before anything else is heard from it.
struct RendezvousReady {
  std::string name;     // of this node, for people
  std::string address;  // where the other nodes reach it
};
// Something that people want to read.
struct Progress {
  std::string message;
  std::optional<Instant> deadline = {};  // the time of what the message ends with: ", gives up"
};
// The rendezvous is out of reach for good.
struct RendezvousLost {
  int exit_code = kExitCoordinatorLost;
  std::string message;
};
// This node cannot do its part in any round: no port, no files. No worker was started.
struct LocalFault {
  int exit_code = kExitInternal;
  std::string message;
};
struct WorkerStarted {
  int local_rank = 0;
  int pid = -1;
  Instant at;
};
struct WorkerExited {
  int local_rank = 0;
  int pid = -1;
  WorkerExit exit;
  FailureEvidence evidence = {};  // of a failure
  std::string output = {};  // of a failure: the last lines of its stderr, for this node's report
};
// Every worker of the round has ended and nothing of their process groups is left.
struct GroupGone {};
struct StopRequested {
  int signal = 0;
};
// The workers are out of our hands: the guardian died, or an action was half applied.
struct SupervisionLost {
  std::string message;
};
// next_deadline() has come.
struct PolicyTick {};

using PolicyEvent =
    std::variant<RendezvousReady, Progress, RendezvousLost, LocalFault, rdzv::Round, rdzv::Restart,
                 rdzv::Evicted, rdzv::Refused, rdzv::TimedOut, rdzv::Closed, WorkerStarted,
                 WorkerExited, GroupGone, StopRequested, SupervisionLost, PolicyTick>;

// To be said to the rendezvous. A Join lacks its store_port: the owner binds one and fills it in.
struct Send {
  NodeStatement statement;
};
struct StartGroup {
  std::shared_ptr<const RoundInfo> round;
};
// Signal what runs, and kill what is left of it after `grace`. A later one may only shorten the
// time.
struct StopGroup {
  int signal = 0;
  Duration grace{};
};
// Tell the user. Kind, state, local rank, pid, exit, message and time are set.
struct Report {
  AgentEvent event;
};
// Let go of everything; `result` is final. Its failures have no paths yet.
struct Finish {
  AgentResult result;
};
using PolicyAction = std::variant<Send, StartGroup, StopGroup, Report, Finish>;

// What an event means in the light of what is known: the columns of the transition table.
enum class PolicyInput : std::uint8_t {
  kReady,
  kProgress,
  kRound,            // one that was not heard of before
  kStale,            // of a round that is over, or told again
  kStopOrdered,      // to stop the workers (restart, eviction), which are there
  kStopOrderedIdle,  // the same, and none are there
  kSuccess,          // the job's, as everybody is told
  kEnd,              // the job's, or this node's part in it, without success
  kWorkerStarted,
  kWorkerDone,       // exited 0
  kWorkerFailed,     // ended otherwise, and not because of us
  kWorkerStopped,    // ended after we had stopped it
  kGroupEnded,       // and nobody has told us to go on
  kGroupGoneToJoin,  // and we were told to ask for another round
  kStopRequested,    // by which the outcome changes
  kKillRequested,    // a stop request when the outcome is settled and only time is left to decide
  kSupervisionLost,
  kTick,  // what was waited for has not come
};
inline constexpr std::size_t kPolicyInputs = 18;
inline constexpr std::size_t kAgentStates = 7;

// What is done on the way from one state to the next.
enum class PolicyStep : std::uint8_t {
  kIgnore,
  kReport,
  kJoin,
  kStartGroup,
  kStopWorkers,
  kEnd,
  kCountStarted,
  kCountExit,
  kAddFailure,
  kSendDone,
  kSendGone,
  kRejoin,
  kFinish,
  kLeave,
  kLeaveDone,
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

// A node that has said that a worker failed is told within this time what to do; else nobody hears
// it, and it stops its other workers by itself: their collectives are broken anyway.
inline constexpr Duration kOrderTimeout = std::chrono::seconds(1);

struct AgentPolicyOptions {
  NodeInfo node;  // without name, address and store_port
  JobSettings settings;
  std::optional<Duration> exit_barrier_timeout;
};

class AgentPolicy {
 public:
  explicit AgentPolicy(const AgentPolicyOptions& options)
      : settings_(options.settings),
        exit_barrier_timeout_(options.exit_barrier_timeout),
        participant_(options.node, options.settings) {}

  // Feeds one event and appends, in the order of execution, what must now happen. After Finish,
  // events change nothing.
  void step(const PolicyEvent& event, Instant now, std::vector<PolicyAction>* out);
  // When step(PolicyTick{}) must be called; nullopt: never.
  std::optional<Instant> next_deadline() const { return deadline_; }

  AgentState state() const { return state_; }
  // What `event` means now.
  PolicyInput classify(const PolicyEvent& event) const;

 private:
  struct Context;
  struct Reader;

  void run(PolicyStep step, const PolicyEvent& event, Context* context);
  void report_progress(const Progress& progress, Context* context);
  void join(const PolicyEvent& event, Context* context);
  void start_group(const rdzv::Round& event, Context* context);
  void stop_workers(const PolicyEvent& event, Context* context);
  std::string order_reason(const PolicyEvent& event, Context* context);
  void end(const PolicyEvent& event, Context* context);
  void set_result(const JobResult& job);
  void count_started(const WorkerStarted& event, Context* context);
  void count_exit(const WorkerExited& event, Context* context);
  void add_failure(const WorkerExited& event, Context* context);
  void send_failure(const WorkerFailure& failure, Context* context);
  void send_done(Context* context);
  void send_gone(Context* context);
  void request_join(Context* context);
  void update(const ParticipantEvent& event, Context* context);
  void stop_group(Duration grace, const std::string& why, Context* context);
  void leave(const StopRequested& event, Context* context);
  void leave_done(Context* context);
  void kill(const StopRequested& event, Context* context);
  void lose(const PolicyEvent& event, Context* context);
  void finish(Context* context);
  bool all_ended() const;
  const NodeInfo& self() const { return participant_.node(); }
  // The failure that the round ended by here. REQUIRES: there is one.
  const WorkerFailure& cause() const;
  std::string describe_failure(const WorkerFailure& failure) const;
  std::string restart_text(const RoundRecord& record) const;

  const JobSettings settings_;
  const std::optional<Duration> exit_barrier_timeout_;

  AgentState state_ = AgentState::kInit;
  Participant participant_;
  bool is_finished_ = false;
  std::optional<Instant> deadline_;
  AgentResult result_;  // settled, and told when the workers are gone
  int stop_requests_ = 0;
  int stop_signal_ = 0;  // of the last request

  // Of the present round.
  std::shared_ptr<const RoundInfo> round_;
  bool is_stopping_ = false;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
  std::vector<WorkerFailure> failures_;
  std::string end_reason_;
};

}  // namespace elastic::core
