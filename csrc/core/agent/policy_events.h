#pragma once

// What the policy of a node's agent receives, and what it asks for (agent_policy.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "core/rendezvous/failure_policy.h"
#include "core/rendezvous/participant.h"
#include "core/rendezvous/rendezvous_events.h"
#include "elastic/agent.h"

namespace elastic::core {

// The rendezvous is reachable. Fed once, before any other event of the rendezvous.
struct RendezvousReady {
  std::string name;     // of this node, in messages
  std::string address;  // where the other nodes reach it
  bool hosts_coordinator = false;
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
// A check has found this node bad, before it joined or after a failure of its workers.
struct NodeUnfit {
  std::string message;
  bool has_joined = false;
};
struct WorkerStarted {
  int local_rank = 0;
  int pid = -1;
  Instant at;
};
// A worker has ended. Besides its exit: what is known about a failure.
struct WorkerExited {
  int local_rank = 0;
  int pid = -1;
  WorkerExit exit = {};
  // When the worker reported the error that ended it; nullopt: nothing precedes its exit.
  std::optional<Instant> reported_at = {};
  FailureEvidence evidence = {};
  std::string output = {};       // the last lines of its stderr, for this node's report
  std::string fingerprint = {};  // equal for failures that look the same
  std::optional<FailureAdvice> advice = {};
};
// More is known about a failed worker; or a worker had failed before it was stopped, and may still
// run (its exit is kUnknown).
struct FailureFound {
  WorkerExited worker;
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
// No worker of the round was started, and none will be: another round is to follow.
struct StartAbandoned {};
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
    std::variant<RendezvousReady, Progress, RendezvousLost, LocalFault, NodeUnfit, rdzv::Round,
                 rdzv::Restart, rdzv::Evicted, rdzv::Refused, rdzv::TimedOut, rdzv::Closed,
                 WorkerStarted, WorkerExited, FailureFound, WorkerCapable, WorkerLeft, LeaveAtStep,
                 StartAbandoned, GroupGone, StopRequested, SupervisionLost, PolicyTick>;

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
  StopReason why = {};
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
  StopReason why = {};
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
// The job's result crossed this node's leave: these replace those of the result.
struct CorrectResult {
  int exit_code = 0;
  std::string message;
};
using PolicyAction = std::variant<Send, StartGroup, PrepareGroup, CutGroup, ContinueGroup,
                                  StopGroup, Report, Finish, CorrectResult>;

}  // namespace elastic::core
