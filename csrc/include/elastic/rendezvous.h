#pragma once

// The rendezvous state machine: decides a job's rounds, their members and ranks, and its end.
//
//   elastic::Rendezvous job(settings, now);
//   std::vector<elastic::RendezvousAction> actions;
//   job.step(elastic::rdzv::Join{node, settings}, now, &actions);
//   // execute the actions in order; call step(Tick{}) at job.next_deadline()
//
// Pure: no I/O, clock, threads or logging. The same calls in the same order give the same actions.
// One object holds one job. It runs in a coordinator, which passes on its sessions' messages.
//
// Thread rule: the owner serialises all calls. `now` never decreases.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "elastic/export.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

namespace core {
class RendezvousMachine;
}

namespace rdzv {
// ---- Events. Every event of a node also counts as a heartbeat.

// Requests membership of the round after node.highest_round, and confirms that all workers of
// earlier rounds have ended. A finished node (Done) also replies to a Restart with it.
struct Join {
  NodeInfo node;
  JobSettings settings;
};
// The state of a node.
enum class NodePhase : std::uint8_t {
  kJoined,   // waits for the next round
  kWorking,  // its workers run, or are being stopped
  kStopped,  // its workers have ended, not all with success
  kDone,     // all of its workers succeeded
};
// A session continues on a new connection. A restarted coordinator without a state file rebuilds
// the round from these events.
struct Resume {
  NodeInfo node;
  JobSettings settings;
  NodePhase phase = NodePhase::kJoined;
  std::optional<HeldRound> last;         // the last round that it received
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
// The caller's process did not run for `gap`. Feed it before the messages that waited.
struct ClockGap {
  Duration gap{};
};
// Until the job ends no round is restarted for nodes that join.
struct HoldGrowth {};
// The round ends for the nodes that wait, if Rendezvous::is_growth_due().
struct Grow {
  std::string why = {};  // not at an agreed step; "": it is at one, or none was expected
};

// ---- Actions. Each is one message of bounded size to the node `to`.
struct Round {
  NodeId to;
  std::shared_ptr<const RoundRecord> record;
  NodeAssignment own;
};
// The node stops the workers of `round` within `grace`, sends Gone, then Join with a highest_round
// of at least `round`. A finished node, or one that never received the round, has none to stop.
struct Restart {
  NodeId to;
  std::uint64_t round = 0;
  RestartCause cause = RestartCause::kWorkerFailed;
  std::string reason;  // one sentence
  Duration grace{};
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
};
// The node's message is of another round than the current one and was ignored.
struct Superseded {
  NodeId to;
  std::uint64_t round = 0;
};
// The join is rejected: a value is invalid, or its settings differ from the job's.
struct Refused {
  NodeId to;
  Status error;
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

using RendezvousEvent =
    std::variant<rdzv::Join, rdzv::Resume, rdzv::Heartbeat, rdzv::Failed, rdzv::Gone, rdzv::Done,
                 rdzv::Leave, rdzv::Close, rdzv::SessionLost, rdzv::ProcessEnded, rdzv::Tick,
                 rdzv::ClockGap, rdzv::HoldGrowth, rdzv::Grow>;
// The events that a node sends; the others are made by the owner of the machine.
using NodeStatement =
    std::variant<rdzv::Join, rdzv::Failed, rdzv::Gone, rdzv::Done, rdzv::Leave, rdzv::Close>;
using RendezvousAction =
    std::variant<rdzv::Round, rdzv::Restart, rdzv::Waiting, rdzv::Resumed, rdzv::Evicted,
                 rdzv::Superseded, rdzv::Refused, rdzv::TimedOut, rdzv::Closed, rdzv::RoundOver>;

enum class RendezvousPhase : std::uint8_t { kForming, kRunning, kClosed };

// One node of the job, for status displays.
struct NodeStatus {
  NodeId id;
  std::string name;
  rdzv::NodePhase phase = rdzv::NodePhase::kJoined;
  int rank = -1;            // in record(); -1: not a member
  bool is_suspect = false;  // its session is closed
  Duration silence{};       // since its last message
  bool hosts_coordinator = false;
};
// A new machine completes no round for this long, so that members of a round of an earlier
// coordinator can resume; not if max_nodes nodes without an earlier round have joined.
inline constexpr Duration kStartHold = std::chrono::seconds(2);

class ELASTIC_EXPORT Rendezvous {
 public:
  // `start_hold`: rest of kStartHold since the owner's start; zero where a store has the record.
  // REQUIRES: settings.validate().ok()
  Rendezvous(JobSettings settings, Instant now, Duration start_hold = kStartHold);
  Rendezvous(Rendezvous&&) noexcept;
  Rendezvous& operator=(Rendezvous&&) noexcept;
  ~Rendezvous();

  // Feeds one event and appends the resulting actions, in order.
  void step(const RendezvousEvent& event, Instant now, std::vector<RendezvousAction>* actions);
  // The latest time for the next step(Tick{}); an earlier one is allowed. nullopt: none is needed.
  std::optional<Instant> next_deadline() const;
  std::string describe(Instant now) const;  // one sentence: the state, and what it waits for
  RendezvousPhase phase() const;
  const JobSettings& settings() const;
  // The current round, or the last one while the next is being formed; round 0 before the first.
  const RoundRecord& record() const;
  const std::vector<RoundMember>& members() const;  // of record(), by node rank
  int members_left() const;  // of record(), without those that have left or were lost
  std::vector<NodeStatus> nodes(Instant now) const;  // all nodes of the job, by id
  bool has_node(const NodeId& id) const;
  std::vector<NodeId> lost_nodes() const;       // that were lost, and are not back
  std::string name_of(const NodeId& id) const;  // also of one that left lately; "": it is unknown
  int waiting_nodes() const;  // nodes that a restart would let in; spares are not counted
  int spare_nodes() const;
  void await_grow();           // from now on no round ends for nodes that wait before rdzv::Grow
  bool is_growth_due() const;  // rdzv::Grow is awaited
  int joined_nodes() const;    // nodes that wait for the next round, spares included
  // For messages to nodes that wait: what else waits at this coordinator. Not part of the state.
  void set_neighbours(std::string text);
  const JobResult* result() const;  // null while the job is open
  bool is_removable() const;        // no node is left and no action is pending
  // The state as bytes: versioned; with durations and counters but no instants, so that a process
  // with another clock can continue. What this machine observed about liveness is not included.
  std::string encode() const;
  // Replaces the state with the stored one; running time limits continue. Fails without any change
  // if the bytes are damaged, of another version, or of a job with other settings.
  Status load(std::string_view bytes, Instant now);
  // Continues, on a new object, an earlier coordinator's state. A newer round with which a node
  // resumes replaces the stored one. A node that does not resume is lost after store_grace.
  Status restore(std::string_view bytes, Instant now);
  // The same from a record in force: rounds are not delayed, and no node holds a newer one. A node
  // that does not resume is lost after node_timeout and a second.
  Status succeed(std::string_view bytes, const RendezvousSuccession& succession, Instant now);
  bool has_resumed() const;  // after succeed(): a known node came back, or the job is closed
  void begin_anew(const JobSettings& settings, Instant now);  // the next job; round numbers go on
  Duration takeover_limit() const;  // until such a node is lost; zero: the round was formed here

 private:
  std::unique_ptr<core::RendezvousMachine> machine_;
};

}  // namespace elastic
