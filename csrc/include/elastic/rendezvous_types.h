#pragma once

// The values of a rendezvous: nodes, job settings, rounds, failures and results. Plain values.
//
// docs/rendezvous.md has the rules and the numbered invariants.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/export.h"
#include "elastic/failure_advice.h"
#include "elastic/resume_point.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

// Limits. A join that exceeds one is rejected.
inline constexpr int kNodesMax = 100'000;
inline constexpr int kLocalWorldSizeMax = 4096;
inline constexpr std::size_t kNodeTextBytesMax = 255;  // a name, an address, a role, a topology
inline constexpr std::size_t kMessageBytesMax = 1024;  // a reason, a failure's message
inline constexpr std::size_t kEvidenceBytesMax = 4096;

// Identifies one incarnation of an agent. Random: a restarted agent is a new node.
struct NodeId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  auto operator<=>(const NodeId&) const = default;
};
ELASTIC_EXPORT std::string to_string(const NodeId& id);  // 32 hexadecimal digits

// What happens when the loss of a node leaves fewer than min_nodes.
enum class LossPolicy : std::uint8_t {
  kReplace,  // wait up to join_timeout for a replacement, then fail
  kFail,     // fail at once
};

// The settings of a job. All nodes must send equal values; only the durations may differ, and those
// of the first node apply.
struct JobSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;             // the restart budget: rounds that may end by failed workers
  int max_membership_changes = -1;  // the limit of restarts for new nodes; -1: no limit
  bool static_ranks = false;        // every node sends its rank; min_nodes == max_nodes
  LossPolicy on_loss = LossPolicy::kReplace;
  std::vector<std::pair<std::string, std::string>> extra;  // (name, value), compared as strings

  Duration join_timeout = std::chrono::seconds(600);      // limit for min_nodes to join
  Duration last_call_timeout = std::chrono::seconds(30);  // first round: wait beyond min_nodes
  Duration settle = std::chrono::seconds(2);  // quiet period after a join before a round grows
  Duration shrink_delay = Duration::zero();   // wait for a replacement before a round shrinks
  Duration node_timeout = std::chrono::seconds(5);           // silence after which a node is lost
  Duration reconnect_grace = std::chrono::milliseconds(50);  // limit for a broken session to resume
  Duration store_grace = std::chrono::seconds(60);  // limit to reconnect to a new coordinator
  // The delay before a restart when workers fail within five seconds of their start repeatedly: the
  // first restart is immediate, the second waits this long, and each further one twice as long as
  // the one before, up to a minute. Zero: every restart is immediate, and nodes that join are not
  // delayed when others were lost soon after they had joined.
  Duration restart_backoff = std::chrono::seconds(1);

  // Names the first invalid value.
  ELASTIC_EXPORT Status validate() const;
};

namespace rdzv {
// The state of a node.
enum class NodePhase : std::uint8_t {
  kJoined,   // waits for the next round
  kWorking,  // its workers run, or are being stopped
  kStopped,  // its workers have ended, not all with success
  kDone,     // all of its workers succeeded
};

// Why a round ends. kRejoin: a node joined again, or a finished one is needed for the next round.
enum class RestartCause : std::uint8_t {
  kWorkerFailed,
  kMemberLost,
  kGrowth,
  kRejoin,
  kMemberLeft
};
}  // namespace rdzv

enum class RendezvousPhase : std::uint8_t { kForming, kRunning, kClosed };

// The number of a round for people and workers, which count from 0 as torch does: in messages, in
// ELASTIC_ROUND and in attempt_<n>.
constexpr std::uint64_t shown_round(std::uint64_t round) { return round == 0 ? 0 : round - 1; }

// The values that all members of a round share. Its size does not depend on the number of nodes.
struct RoundRecord {
  std::uint64_t term = 1;        // of the coordinator that formed the round
  std::uint64_t round = 0;       // from 1; increases over all generations; see shown_round()
  std::uint32_t generation = 1;  // counts the jobs that used this id one after another
  int nodes = 0;
  int world_size = 0;
  std::string master_addr;  // of the node of rank 0
  std::uint16_t master_port = 0;
  int restarts = 0;  // restarts that were charged to the budget
  int membership_changes = 0;
  int coordinator_rank = -1;         // the member that hosts the coordinator; -1: none of them
  std::uint64_t members_digest = 0;  // a hash of the member list
  ResumePoint resume;

  bool operator==(const RoundRecord&) const = default;
};

// The ranks of one member in a round.
struct NodeAssignment {
  int group_rank = 0;  // of the node
  int local_world_size = 0;
  int base_rank = 0;  // global rank of its local rank 0; its other ranks follow
  int base_role_rank = 0;
  int role_world_size = 0;

  bool operator==(const NodeAssignment&) const = default;
};

// Who has to act on a failure.
enum class FailureClass : std::uint8_t {
  kUserWorker,      // the training program
  kUserInput,       // the command line or the script: a restart usually fails in the same way
  kPlatform,        // the machine: memory, GPU, a signal from outside
  kInfrastructure,  // nodes, network, coordinator
};

enum class FailureCause : std::uint8_t {
  kUnknown,
  kExitCode,
  kException,  // a Python exception that ended the process
  kSignal,
  kOutOfMemory,  // SIGKILL, while the kernel counted OOM kills
  kGpu,          // the kernel log reports a GPU fault
  kNotStarted,
  kNodeLost,
  kUnreachable,  // the store of the round cannot be reached from the worker's node
  kHang,         // killed by the launcher, because it made no progress
};

ELASTIC_EXPORT const char* to_string(FailureClass failure_class);  // "user worker", …
ELASTIC_EXPORT const char* to_string(FailureCause cause);          // "exit code", …

// Details of a failed worker for the report. No decision depends on them.
struct FailureEvidence {
  std::string host;       // host name of the node
  std::int64_t time = 0;  // the earliest evidence: nanoseconds since 1970 by that host's clock
  std::string output;     // the last lines of its stderr: UTF-8, at most kEvidenceBytesMax
  FailureClass failure_class = FailureClass::kUserWorker;
  FailureCause cause = FailureCause::kUnknown;
  std::string error;  // the exception with its message, in one line; "": none is known
  std::string hint;   // what else is known, in one sentence; ""
  bool operator==(const FailureEvidence&) const = default;
};

// Why workers are stopped, as they learn it.
enum class StopCause : std::uint8_t {
  kWorkerFailed,     // a worker of the job failed
  kHang,             // a worker was killed because it made no progress
  kNodeLost,         // a node was lost
  kNodeLeft,         // a node left
  kMembersChanged,   // nodes join
  kPreempted,        // a node was told to stop
  kDrained,          // the job, or this node, stops at an agreed step
  kEvicted,          // the job continues without this node
  kCoordinatorLost,  // and no other one was found in time
  kJobEnded,         // for another reason
};

ELASTIC_EXPORT const char* to_string(StopCause cause);  // "worker-failed", …

struct StopReason {
  StopCause cause = StopCause::kMembersChanged;
  int rank = -1;          // of the worker that failed first; -1: no worker failed
  std::string node = {};  // its node, or the one that was lost or has left; ""
  int exit_code = 0;      // of that worker
  std::optional<FailureClass> failure_class = {};  // who has to act
  std::string text = {};                           // one sentence

  bool operator==(const StopReason&) const = default;

  // "worker-failed; rank=3; node=n1_77_0; exit_code=1; class=user worker; reason=…": one line, at
  // most kStopReasonBytesMax. What is not known is left out. The reason comes last.
  ELASTIC_EXPORT std::string describe() const;
};
inline constexpr std::size_t kStopReasonBytesMax = 1000;

// Why the round before this one ended.
struct RoundCause {
  StopReason why = {};
  // Rounds in a row that ended by the same failure within a minute of their start.
  int same_failures = 0;
  std::uint64_t failure_digest = 0;  // equal for failures that look the same; 0: none
  std::string rule = {};             // of the failure policy, that decided to restart; ""

  bool operator==(const RoundCause&) const = default;
};

// The first failure of a node's workers in one round.
struct FailureReport {
  int local_rank = 0;
  int rank = 0;         // global
  int exit_code = 1;    // as in a shell's $?
  std::string message;  // "exited with code 3"
  Instant at;           // the earliest evidence, by the clock of the host that runs the rendezvous
  std::optional<FailureEvidence> evidence = {};
  std::optional<FailureAdvice> advice = {};

  bool operator==(const FailureReport&) const = default;
};

enum class JobOutcome : std::uint8_t { kSucceeded, kFailed, kClosed };

// Why a job ended without success. Each comment names the fields of JobResult that are set.
enum class JobCause : std::uint8_t {
  kNone,
  kWorker,  // a worker failed and the budget is spent: exit_code, node, rank
  // A node was lost or left, too few remain, and the budget is spent: node; exit_code, if it left.
  kNodeLost,
  kTooFewNodes,  // fewer than min_nodes were left for join_timeout: as above
  kRequested,    // a node closed the job: exit_code
};

struct JobResult {
  JobOutcome outcome = JobOutcome::kSucceeded;
  JobCause cause = JobCause::kNone;
  int exit_code = 0;              // 0: the launcher derives it from the cause
  int rank = -1;                  // global rank of the worker that failed first
  std::string node;               // the name of its node, or of the lost node
  NodeId node_id;                 // kWorker: of its node, as several may have one name
  std::string message;            // one sentence
  std::vector<std::string> lost;  // names of nodes lost in the last round, at most eight
  // kWorker: names of nodes whose ranks had all exited with 0 in that round, at most eight.
  std::vector<std::string> finished = {};
  std::optional<FailureEvidence> evidence = {};  // of the worker that failed first

  bool operator==(const JobResult&) const = default;
};

}  // namespace elastic
