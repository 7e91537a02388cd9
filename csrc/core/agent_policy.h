#pragma once

// What one node's agent does about what happens to it: when to form a round, start its workers,
// stop them, begin again, and with which result to end.
//
// Pure: the same calls in the same order give the same actions. Not thread-safe; the owner
// serialises calls and carries the actions out in order. An action that cannot be carried out is
// answered with SupervisionLost.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "elastic/agent.h"

namespace elastic::core {

// The round that was asked for by Join: who takes part, with which ranks, and its store is open.
struct RoundReady {
  std::shared_ptr<const RoundInfo> round;
};
// The round cannot be formed on this node, and trying again would not help.
struct RoundFailed {
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
using PolicyEvent = std::variant<RoundReady, RoundFailed, WorkerStarted, WorkerExited, GroupGone,
                                 StopRequested, SupervisionLost>;

// Form round `round`; answered by RoundReady or RoundFailed.
struct Join {
  std::uint64_t round = 0;
  int restart_count = 0;
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
using PolicyAction = std::variant<Join, StartGroup, StopGroup, Report, Finish>;

// What an event means in the light of what is known: the columns of the transition table.
enum class PolicyInput : std::uint8_t {
  kRoundReady,
  kRoundFailed,
  kWorkerStarted,
  kWorkerDone,        // exited 0
  kWorkerFailed,      // ended otherwise, and not because of us
  kWorkerStopped,     // ended after we had stopped it
  kGroupGone,         // and no further round follows
  kGroupGoneToRetry,  // and the budget allows another round
  kStopRequested,     // by which the outcome changes
  kHurryRequested,    // a stop request when the outcome is settled and only time is left to decide
  kSupervisionLost,
};
inline constexpr std::size_t kPolicyInputs = 11;
inline constexpr std::size_t kAgentStates = 7;

// What is done on the way from one state to the next.
enum class PolicyStep : std::uint8_t {
  kIgnore,
  kStartGroup,
  kFailRound,
  kCountStarted,
  kCountExit,
  kStopForFailure,
  kAddFailure,
  kRestart,
  kSucceed,
  kFail,
  kStopForRequest,
  kFinishStopped,
  kHurry,
  kLose,
};

struct PolicyEdge {
  PolicyStep step = PolicyStep::kIgnore;
  AgentState next = AgentState::kInit;
};

using PolicyTable = std::array<std::array<PolicyEdge, kPolicyInputs>, kAgentStates>;
// Indexed by AgentState and PolicyInput.
const PolicyTable& policy_table();

struct AgentPolicyOptions {
  int max_restarts = 0;
  Duration stop_grace{};
};

class AgentPolicy {
 public:
  explicit AgentPolicy(const AgentPolicyOptions& options) : options_(options) {}

  // Asks for the first round. Once, before any event.
  void begin(std::vector<PolicyAction>* out);
  // Feeds one event and appends, in the order of execution, what must now happen. After Finish,
  // events change nothing.
  void step(const PolicyEvent& event, Instant now, std::vector<PolicyAction>* out);

  AgentState state() const { return state_; }
  // What `event` means now.
  PolicyInput classify(const PolicyEvent& event) const;

 private:
  struct Context;

  void run(PolicyStep step, const PolicyEvent& event, Context* context);
  void start_group(const RoundReady& event, Context* context);
  void count_started(const WorkerStarted& event, Context* context);
  void count_exit(const WorkerExited& event, Context* context);
  void add_failure(const WorkerExited& event);
  void stop_for_failure(const WorkerExited& event, Context* context);
  void stop_for_request(const StopRequested& event, Context* context);
  void hurry(const StopRequested& event, Context* context);
  void restart(Context* context);
  void fail(Context* context);
  void finish_stopped(const PolicyEvent& event, Context* context);
  void finish(int exit_code, std::string message, Context* context);
  bool may_restart() const;
  bool all_ended() const;
  // The failure that the round ended by. REQUIRES: there is one.
  const WorkerFailure& cause() const;
  std::string story_of(const WorkerFailure& failure) const;

  const AgentPolicyOptions options_;

  AgentState state_ = AgentState::kInit;
  bool finished_ = false;
  std::uint64_t round_number_ = 1;
  int restart_count_ = 0;
  int stop_requests_ = 0;
  int stop_signal_ = 0;  // of the first request

  // Of the present round.
  std::shared_ptr<const RoundInfo> round_;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
  std::vector<WorkerFailure> failures_;
};

}  // namespace elastic::core
