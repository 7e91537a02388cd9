#pragma once

// What the rendezvous of a job receives and sends: the values of its messages, the events, the
// actions, and the table of what it does with a message. docs/rendezvous.md has the rules. Plain
// values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "core/base/held_state.h"
#include "core/base/transitions.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {
namespace core {

// A join that names a higher round is rejected.
inline constexpr std::uint64_t kRoundMax = 1ULL << 62;

// The data that a node sends when it joins.
struct NodeInfo {
  NodeId id;
  std::string name;              // host and pid: for messages, and a sort key of ranks
  std::string address;           // at which the other nodes reach this one
  std::uint16_t store_port = 0;  // bound for the workers' store in case this node gets rank 0
  int local_world_size = 1;
  std::string role = "default";
  int previous_rank = -1;  // its node rank in its last round; assigned again if it is free
  // The highest round that it received in a Round, Restart or Evicted. A join with a lower number
  // than the last one sent to this node was sent before the node received that message.
  std::uint64_t highest_round = 0;
  int static_rank = -1;  // --node-rank: with static_ranks the rank, else a preferred rank
  std::string topology;  // a sort key: nodes with equal values get adjacent ranks
  Duration stop_grace = std::chrono::seconds(30);     // from SIGTERM to SIGKILL
  Duration failure_grace = std::chrono::seconds(30);  // the same, after another node failed
  bool hosts_coordinator = false;  // the coordinator runs in this agent's process
  // What its ranks can continue from, of the rounds before. Sent with each join and resume, and not
  // part of the stored state.
  std::vector<HeldState> held;
  std::string copies_address;  // where it sends copies of these: host:port; "": nowhere
  // Where it answers other nodes that measure the network, before the first round; 0: nowhere. Not
  // part of the stored state.
  std::uint16_t probe_port = 0;
  std::string host = {};  // the name of its machine; "": an older version, see host_of()

  bool operator==(const NodeInfo&) const = default;
};

// The machine of a node: an older version has it in the node's name only, before the process.
// "": the name is that of no node.
std::string host_of(const std::string& node_name);
inline std::string host_of(const NodeInfo& info) {
  return info.host.empty() ? host_of(info.name) : info.host;
}

// A round, and the node rank of the member that reports it.
struct HeldRound {
  RoundRecord record;
  int group_rank = -1;
  std::shared_ptr<const RoundCause> cause = {};  // as in rdzv::Round
};

enum class MemberFate : std::uint8_t {
  kPresent,
  kMissing,  // sent nothing since the coordinator was restarted
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

}  // namespace core

namespace rdzv {
// ---- Events. Every event of a node also counts as a heartbeat.

// Requests membership of the round after node.highest_round, and confirms that all workers of
// earlier rounds have ended. A finished node (Done) also replies to a Restart with it.
struct Join {
  core::NodeInfo node;
  JobSettings settings;
};
// A session continues on a new connection. A restarted coordinator without a state file rebuilds
// the round from these events.
struct Resume {
  core::NodeInfo node;
  JobSettings settings;
  NodePhase phase = NodePhase::kJoined;
  std::optional<core::HeldRound> last;   // the last round that it received
  std::optional<FailureReport> failure;  // in that round
};
struct Heartbeat {
  NodeId node;
};
// A worker failed. The node stops its other workers when it receives Restart, like all nodes.
struct Failed {
  NodeId node;
  std::uint64_t round = 0;
  FailureReport failure;
};
// All workers of the round have ended on the node.
struct Gone {
  NodeId node;
  std::uint64_t round = 0;
};
// All workers of the node succeeded.
struct Done {
  NodeId node;
  std::uint64_t round = 0;
};
// Sent as soon as the agent has decided to leave, before its workers have ended.
struct Leave {
  NodeId node;
  std::string reason;
  // Of the node's launcher. If the job ends since the node is missing, all nodes end with this
  // code; 0: with that of a lost node.
  int exit_code = 0;
  bool is_planned = false;  // set by the machine's owner: the node was to leave at an agreed step
};
// Closes the job for all nodes: by request, or after a failure that no restart can fix.
struct Close {
  NodeId node;  // all zero: the owner of the machine decides it
  JobResult result;
};
// The node's session ended without Leave. REQUIRES: no newer session of the same node is open.
struct SessionLost {
  NodeId node;
  Duration least_grace{};  // to resume, however short reconnect_grace is
};
// The node's agent and all of its workers have ended. No effect while its session is open.
struct ProcessEnded {
  NodeId node;
};
// Evaluates the timers; no other event does. First feed every message that has arrived.
struct Tick {};
// The caller's process did not run for `gap` at most, and for `least` at least. Feed it before the
// messages that waited. A short one changes nothing (RendezvousMachine::is_stall).
struct ClockGap {
  Duration gap{};
  Duration least = gap;
};
// Until the job ends no round is restarted for nodes that join.
struct HoldGrowth {};
// The round ends for the nodes that wait, if RendezvousMachine::is_growth_due().
struct Grow {
  std::string why = {};  // not at an agreed step; "": it is at one, or none was expected
};
// The answers of the machine's HostGate have changed.
struct HostsChanged {};
// A node that was to join is on a bad host.
struct HostBad {
  std::string host;
};

// ---- Actions. Each is one message of bounded size to the node `to`.
struct Round {
  NodeId to;
  std::shared_ptr<const RoundRecord> record;
  NodeAssignment own;
  // Why the round before ended; null: this is the first one, or an earlier version formed it.
  std::shared_ptr<const RoundCause> cause = {};
  // Where it gets the states of its ranks after record->resume that it does not hold.
  std::vector<HeldSource> sources = {};
};
// The node stops the workers of `round` within `grace`, sends Gone, then Join with a highest_round
// of at least `round`. A finished node, or one that never received the round, has none to stop.
struct Restart {
  NodeId to;
  std::uint64_t round = 0;
  RestartCause cause = RestartCause::kWorkerFailed;
  std::string reason;  // one sentence
  Duration grace{};
  std::optional<StopReason> why = {};  // nullopt: an earlier version sent it
};
// The reply to a Join whose round is not formed yet; repeated on a change and every 10 s.
struct Waiting {
  NodeId to;
  std::string message;
  std::optional<Duration> remaining = {};  // until what the message ends with: ", gives up"
};
// The session continues; the state of the node has not changed.
struct Resumed {
  NodeId to;
  std::uint64_t round = 0;
};
// The node was declared lost, or is unknown: it stops its workers and may join again, with a
// highest_round of at least `round`. Also emitted at the loss, when the node may be unreachable.
struct Evicted {
  NodeId to;
  std::uint64_t round = 0;
  std::string reason;
  bool is_displaced = false;  // its job has dissolved, and it joins another one; not sent
};
// The join is rejected: a value is invalid, or its settings differ from the job's.
struct Refused {
  NodeId to;
  Status error;
  bool is_excluded = false;  // the job does without the node's host for a while
};
struct TimedOut {
  NodeId to;
  std::string message;
};
struct Closed {
  NodeId to;
  std::shared_ptr<const JobResult> result;
};
// To the node of rank 0: the workers of all members have ended, and its store may be closed.
struct RoundOver {
  NodeId to;
  std::uint64_t round = 0;
};

}  // namespace rdzv

namespace core {

using RendezvousEvent =
    std::variant<rdzv::Join, rdzv::Resume, rdzv::Heartbeat, rdzv::Failed, rdzv::Gone, rdzv::Done,
                 rdzv::Leave, rdzv::Close, rdzv::SessionLost, rdzv::ProcessEnded, rdzv::Tick,
                 rdzv::ClockGap, rdzv::HoldGrowth, rdzv::Grow, rdzv::HostsChanged, rdzv::HostBad>;
// The events that a node sends; the others are made by the owner of the machine.
using NodeStatement =
    std::variant<rdzv::Join, rdzv::Failed, rdzv::Gone, rdzv::Done, rdzv::Leave, rdzv::Close>;
using RendezvousAction =
    std::variant<rdzv::Round, rdzv::Restart, rdzv::Waiting, rdzv::Resumed, rdzv::Evicted,
                 rdzv::Refused, rdzv::TimedOut, rdzv::Closed, rdzv::RoundOver>;

inline NodeId addressee(const RendezvousAction& action) {
  return std::visit([](const auto& one) { return one.to; }, action);
}

// Not sent to a session before its Join or Resume: that report decides whether the action still
// applies.
inline bool is_of_a_round(const RendezvousAction& action) {
  return std::holds_alternative<rdzv::Round>(action) ||
         std::holds_alternative<rdzv::Restart>(action);
}

// It is no longer a node of the job; until it joins again its heartbeats are ignored.
inline bool removes_node(const RendezvousAction& action) {
  return std::holds_alternative<rdzv::Evicted>(action) ||
         std::holds_alternative<rdzv::Refused>(action) ||
         std::holds_alternative<rdzv::TimedOut>(action);
}

// A round ends because a member is gone.
inline bool is_departure(rdzv::RestartCause cause) {
  return cause == rdzv::RestartCause::kMemberLost || cause == rdzv::RestartCause::kMemberLeft;
}

// ---- What the rendezvous does with a message, by the state of the node that sent it: the table
// that the machine runs and that docs/rendezvous.md shows.

// A node's state as the machine knows it.
enum class NodeRow : std::uint8_t {
  kAbsent,         // not known: it never joined, left, or was declared lost
  kJoined,         // has no workers and wants the next round: candidate, waiting or spare
  kWorking,        // a member of the round; its workers run or are being stopped
  kStopped,        // a member whose workers are gone, or a finished node that was called back
  kDone,           // all of its workers succeeded; it waits for the others
  kAbsentClosed,   // the job is closed and the node is not known
  kPresentClosed,  // the job is closed and the node has not gone yet
};
inline constexpr std::size_t kNodeRows = 7;

enum class NodeMessage : std::uint8_t {
  kJoin,
  kFailed,
  kGone,
  kDone,
  kLeave,
  kClose,
  kHeartbeat,
  kSessionLost,
  kProcessEnded
};
inline constexpr std::size_t kNodeMessages = 9;

// The others are made by the coordinator, and are no sign of life.
constexpr bool is_from_node(NodeMessage message) {
  return message != NodeMessage::kSessionLost && message != NodeMessage::kProcessEnded;
}

enum class Response : std::uint8_t {
  kAdmit,       // the node becomes joined
  kRefresh,     // its new data replace the old data; replied to again
  kEnqueue,     // joined; ends the round if it still ran
  kFail,        // ends the round if it still ran; records the failure
  kStop,        // its workers have ended; ends the round if it still ran
  kFinish,      // done; the last member ends the job
  kLeave,       // the node is removed; if it was a working member the round ends
  kClose,       // the job is closed with this result
  kAlive,       // counts as a heartbeat
  kSuspect,     // lost after reconnect_grace unless it resumes
  kLose,        // lost at once if its session is closed
  kResend,      // the last decision is sent again
  kEvict,       // unknown here; receives Evicted
  kSendResult,  // receives the result
  kIgnore,
};

struct ResponseTable {
  using N = NodeRow;
  using M = NodeMessage;
  using R = Response;

  static constexpr EnumSet<N> kOfOpenJob = {N::kJoined, N::kWorking, N::kStopped, N::kDone};
  static constexpr EnumSet<N> kPresent = {N::kJoined, N::kWorking, N::kStopped, N::kDone,
                                          N::kPresentClosed};
  // A pair without a row: kIgnore.
  static constexpr Transition<N, M, R> kRows[] = {
      {.in = {N::kAbsent, N::kAbsentClosed}, .on = {M::kJoin}, .run = R::kAdmit},
      {.in = {N::kJoined}, .on = {M::kJoin}, .run = R::kRefresh},
      {.in = {N::kWorking, N::kStopped}, .on = {M::kJoin}, .run = R::kEnqueue},
      {.in = {N::kDone}, .on = {M::kJoin}, .run = R::kResend},
      {.in = {N::kPresentClosed}, .on = {M::kJoin}, .run = R::kSendResult},

      {.in = {N::kAbsent}, .on = {M::kFailed, M::kGone, M::kDone, M::kHeartbeat}, .run = R::kEvict},
      {.in = {N::kAbsentClosed},
       .on = {M::kFailed, M::kGone, M::kDone, M::kHeartbeat},
       .run = R::kSendResult},
      {.in = {N::kJoined, N::kWorking, N::kStopped}, .on = {M::kFailed}, .run = R::kFail},
      {.in = {N::kWorking}, .on = {M::kGone}, .run = R::kStop},
      {.in = {N::kWorking}, .on = {M::kDone}, .run = R::kFinish},
      {.in = {N::kDone}, .on = {M::kDone}, .run = R::kResend},
      {.in = {N::kPresentClosed}, .on = {M::kGone, M::kDone}, .run = R::kStop},

      {.in = kPresent, .on = {M::kLeave}, .run = R::kLeave},
      {.in = kPresent, .on = {M::kHeartbeat}, .run = R::kAlive},
      {.in = kOfOpenJob, .on = {M::kClose}, .run = R::kClose},
      {.in = {N::kAbsent}, .on = {M::kClose}, .run = R::kClose},
      {.in = {N::kAbsentClosed, N::kPresentClosed}, .on = {M::kClose}, .run = R::kSendResult},
      {.in = kOfOpenJob, .on = {M::kSessionLost}, .run = R::kSuspect},
      {.in = {N::kPresentClosed}, .on = {M::kSessionLost}, .run = R::kLeave},
      {.in = kOfOpenJob, .on = {M::kProcessEnded}, .run = R::kLose},
  };
};
inline constexpr auto kResponses =
    make_responses<kNodeRows, kNodeMessages>(ResponseTable::kRows, Response::kIgnore);
using enum Response;

constexpr Response response_to(NodeRow row, NodeMessage message) {
  return kResponses[static_cast<std::size_t>(row)][static_cast<std::size_t>(message)];
}

static_assert(static_cast<std::size_t>(NodeMessage::kProcessEnded) + 1 == kNodeMessages);
static_assert(static_cast<std::size_t>(NodeRow::kPresentClosed) + 1 == kNodeRows);

}  // namespace core
}  // namespace elastic
