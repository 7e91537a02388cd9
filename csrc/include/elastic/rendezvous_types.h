#pragma once

// What a rendezvous is told and what it decides: nodes, the job's settings, rounds and results.
//
// Plain values. docs/rendezvous.md has the rules and the numbered invariants.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

// Bounds of what a node may bring. A join beyond them is refused.
inline constexpr int kNodesMax = 100'000;
inline constexpr int kLocalWorldSizeMax = 4096;
inline constexpr std::size_t kNodeTextBytesMax = 255;  // a name, an address, a role, a hint
inline constexpr std::size_t kMessageBytesMax = 1024;  // a reason, a failure's message
inline constexpr std::size_t kEvidenceBytesMax = 4096;
inline constexpr std::uint64_t kRoundMax = 1ULL << 62;

// One incarnation of an agent: random, so that an agent which was restarted is another node.
struct NodeId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  auto operator<=>(const NodeId&) const = default;
};
ELASTIC_EXPORT std::string to_string(const NodeId& id);  // 32 hexadecimal digits

// What a node brings when it joins.
struct NodeInfo {
  NodeId id;
  std::string name;              // addr_pid_localid; shown to people, and its natural order counts
  std::string address;           // where the other nodes reach this one
  std::uint16_t store_port = 0;  // bound already, for the workers' store should it become rank 0
  int local_world_size = 1;
  std::string role = "default";
  int previous_rank = -1;  // its rank in its last round; taken again if it is free
  // The highest round that it was told of, by Round, Restart or Evicted. A join with a lower one
  // than what was said to the node is taken for said before the node could hear it.
  std::uint64_t highest_round = 0;
  int static_rank = -1;  // --node-rank: the rank with static_ranks, else a hint
  std::string topology;  // a hint: nodes that sort together get neighbouring ranks
  Duration stop_grace = std::chrono::seconds(30);     // from TERM to KILL
  Duration failure_grace = std::chrono::seconds(30);  // the same, when a peer has failed
  bool hosts_coordinator = false;  // the coordinator lives in this agent's process

  bool operator==(const NodeInfo&) const = default;
};

// What happens when the loss of a node leaves fewer than min_nodes.
enum class LossPolicy : std::uint8_t {
  kReplace,  // wait up to join_timeout for a replacement, then fail
  kFail,     // fail at once
};

// The job, as its nodes must agree on it. The timings are the first node's: others may differ.
struct JobSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;             // rounds that may end by failed workers
  int max_membership_changes = -1;  // after so many no round is restarted to grow; -1: no limit
  bool static_ranks = false;        // every node gives its rank; min_nodes == max_nodes
  LossPolicy on_loss = LossPolicy::kReplace;
  std::vector<std::pair<std::string, std::string>> extra;  // (name, value), compared as they are

  Duration join_timeout = std::chrono::seconds(600);      // for min_nodes to be reached
  Duration last_call_timeout = std::chrono::seconds(30);  // first round: for more than min_nodes
  Duration settle = std::chrono::seconds(2);              // quiet time before a round grows
  Duration shrink_delay = Duration::zero();               // for a replacement before going smaller
  Duration node_timeout = std::chrono::seconds(5);        // silence after which a node is lost
  Duration reconnect_grace = std::chrono::milliseconds(50);  // for a closed session to resume
  Duration store_grace = std::chrono::seconds(60);  // for members to find a new coordinator
  // Workers that fail again and again within five seconds are restarted at once the first time,
  // after this delay the second time, then after twice as long each time, up to a minute.
  // Zero: always at once.
  Duration restart_backoff = std::chrono::seconds(1);

  // Says which value cannot be.
  ELASTIC_EXPORT Status validate() const;
};

// What all members of a round agree on. Its size does not grow with the number of nodes.
struct RoundRecord {
  std::uint64_t term = 1;        // of the coordinator that formed it: which of several it was
  std::uint64_t round = 0;       // from 1; grows for ever, generations included
  std::uint32_t generation = 1;  // counts the jobs that used this id one after another
  int nodes = 0;
  int world_size = 0;
  std::string master_addr;  // rank 0's node
  std::uint16_t master_port = 0;
  int restarts = 0;  // rounds so far that cost a restart
  int membership_changes = 0;
  int coordinator_rank = -1;         // the member that hosts the coordinator; -1: none of them
  std::uint64_t members_digest = 0;  // of the member list, which is fetched on demand

  bool operator==(const RoundRecord&) const = default;
};

// One member's share of a round.
struct NodeAssignment {
  int group_rank = 0;  // of the node
  int local_world_size = 0;
  int base_rank = 0;  // global rank of its local rank 0; the others follow
  int base_role_rank = 0;
  int role_world_size = 0;

  bool operator==(const NodeAssignment&) const = default;
};

// A round as a member holds it.
struct HeldRound {
  RoundRecord record;
  int group_rank = -1;
};

enum class MemberFate : std::uint8_t {
  kPresent,
  kMissing,  // not heard of since the coordinator was restarted
  kLeft,
  kLost,
};

struct RoundMember {
  NodeId id;
  std::string name;
  std::string address;
  int local_world_size = 0;
  std::string role;
  MemberFate fate = MemberFate::kPresent;

  bool operator==(const RoundMember&) const = default;
};

// What a failed worker left for people to read. No decision depends on it.
struct FailureEvidence {
  std::string host;       // host name of the node
  std::int64_t time = 0;  // of the exit, in nanoseconds since 1970, on that host's clock
  std::string output;     // the last lines of its stderr: UTF-8, at most kEvidenceBytesMax
  bool operator==(const FailureEvidence&) const = default;
};

// The first failure that a node saw among its workers in one round.
struct FailureReport {
  int local_rank = 0;
  int rank = 0;         // global
  int exit_code = 1;    // as a shell tells it
  std::string message;  // "exited with code 3"
  Instant at;           // the earliest evidence, on the clock of whoever runs the machine
  std::optional<FailureEvidence> evidence = {};

  bool operator==(const FailureReport&) const = default;
};

enum class JobOutcome : std::uint8_t { kSucceeded, kFailed, kClosed };

// Why a job that did not succeed ended.
enum class JobCause : std::uint8_t {
  kNone,
  kWorker,       // a worker failed and the budget is spent: exit_code, node, rank
  kNodeLost,     // a node was lost or left, too few remain, and no restart is left: node
  kTooFewNodes,  // min_nodes was not reached again within join_timeout
  kRequested,    // somebody closed it: exit_code is theirs
};

struct JobResult {
  JobOutcome outcome = JobOutcome::kSucceeded;
  JobCause cause = JobCause::kNone;
  int exit_code = 0;              // kWorker, kRequested; otherwise the launcher chooses by cause
  int rank = -1;                  // global rank of the worker that failed first
  std::string node;               // where; a name
  std::string message;            // one sentence
  std::vector<std::string> lost;  // names of nodes lost in the last round, at most eight
  std::optional<FailureEvidence> evidence = {};  // of the worker that failed first

  bool operator==(const JobResult&) const = default;
};

}  // namespace elastic
