#pragma once

// Decides who takes part in a job's rounds, and with which rank.
//
//   elastic::Rendezvous job(settings, now);
//   std::vector<elastic::RendezvousAction> actions;
//   job.step(elastic::rdzv::Join{node, settings}, now, &actions);
//   // carry out the actions in order; call step(Tick{}) at job.next_deadline()
//
// Pure: no I/O, clock, threads or logging. The same calls in the same order give the same actions.
// One object holds one job. It runs in a coordinator, which hands it what its sessions say, or,
// over a compare-and-set store, in every agent: load() what is stored, step(), store encode().
//
// Thread rule: none; the owner serialises the calls. `now` never goes back.

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

// ---- Events. Whatever a node says also counts as a sign of life.

// Asks for a place in the round after node.highest_round, and says thereby that no worker of an
// earlier one is left. A finished node that was called back answers with it too.
struct Join {
  NodeInfo node;
  JobSettings settings;
};

// Where a node is in its life.
enum class NodePhase : std::uint8_t {
  kJoined,   // wants the next round
  kWorking,  // its workers run, or are being stopped
  kStopped,  // its workers are gone, without success
  kDone,     // all of its workers succeeded
};

// A session begins again: nothing is lost, and what could not be said meanwhile is said now. A
// coordinator that knows nothing rebuilds the round from such resumes.
struct Resume {
  NodeInfo node;
  JobSettings settings;
  NodePhase phase = NodePhase::kJoined;
  std::optional<HeldRound> last;         // the last round it was told
  std::optional<FailureReport> failure;  // in that round
};

struct Heartbeat {
  NodeId node;
};
// A worker failed. The node stops nothing by itself: it is told to, like all others.
struct Failed {
  NodeId node;
  std::uint64_t round = 0;
  FailureReport failure;
};
// No worker of the round is left on the node.
struct Gone {
  NodeId node;
  std::uint64_t round = 0;
};
// All workers of the node succeeded.
struct Done {
  NodeId node;
  std::uint64_t round = 0;
};
// Said as soon as the agent knows that it will go, not when its workers are gone.
struct Leave {
  NodeId node;
  std::string reason;
};
// Ends the job for everybody: an orderly end, or a failure that no restart can mend.
struct Close {
  NodeId node;
  JobResult result;
};
// The node's session ended without Leave. REQUIRES: no newer session of the same node is open.
struct SessionLost {
  NodeId node;
  Duration least_grace{};  // to resume, however short reconnect_grace is
};
// Timers are judged by Tick alone. Before it, feed every message that has arrived.
struct Tick {};
// The caller itself stood still for `gap`. Comes before the messages that had to wait.
struct ClockGap {
  Duration gap{};
};

// ---- Actions. `to` is the node that is told; each is one message of bounded size.

struct Round {
  NodeId to;
  std::shared_ptr<const RoundRecord> record;
  NodeAssignment own;
};

enum class RestartCause : std::uint8_t { kWorkerFailed, kMemberLost, kGrowth, kRejoin };
// Stop the workers of `round` within `grace`, say Gone, then Join, with a highest_round of at least
// `round`. A finished node, and one that never heard of the round, has none to stop.
struct Restart {
  NodeId to;
  std::uint64_t round = 0;
  RestartCause cause = RestartCause::kWorkerFailed;
  std::string reason;  // one sentence
  Duration grace{};
};

// Answers a Join that cannot be granted yet, again when the reason changes, and every ten seconds
// while a round is being formed.
struct Waiting {
  NodeId to;
  std::string message;
};
// The session goes on; nothing that matters to the node has happened.
struct Resumed {
  NodeId to;
  std::uint64_t round = 0;
};
// The node was declared lost, or is not known: it stops its workers and may join again, with a
// highest_round of at least `round`. Also emitted at the moment of the loss, when nobody may be
// there to hear it.
struct Evicted {
  NodeId to;
  std::uint64_t round = 0;
  std::string reason;
};
// What the node said belongs to another round than the current one, and has changed nothing.
struct Superseded {
  NodeId to;
  std::uint64_t round = 0;
};
// The join cannot be: bad values, or settings that differ from the job's.
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
// To the node of rank 0: no member of the round has workers any more, so its store may close.
struct RoundOver {
  NodeId to;
  std::uint64_t round = 0;
};

}  // namespace rdzv

using RendezvousEvent =
    std::variant<rdzv::Join, rdzv::Resume, rdzv::Heartbeat, rdzv::Failed, rdzv::Gone, rdzv::Done,
                 rdzv::Leave, rdzv::Close, rdzv::SessionLost, rdzv::Tick, rdzv::ClockGap>;
// What a node may say; the other events are its owner's.
using NodeStatement =
    std::variant<rdzv::Join, rdzv::Failed, rdzv::Gone, rdzv::Done, rdzv::Leave, rdzv::Close>;
using RendezvousAction =
    std::variant<rdzv::Round, rdzv::Restart, rdzv::Waiting, rdzv::Resumed, rdzv::Evicted,
                 rdzv::Superseded, rdzv::Refused, rdzv::TimedOut, rdzv::Closed, rdzv::RoundOver>;

enum class RendezvousPhase : std::uint8_t { kForming, kRunning, kClosed };

// One node that is there, for people and their tools.
struct NodeStatus {
  NodeId id;
  std::string name;
  rdzv::NodePhase phase = rdzv::NodePhase::kJoined;
  int rank = -1;            // in record(); -1: no member of it
  bool is_suspect = false;  // its session is closed
  Duration silence{};       // since it was last heard of
};

// A new machine completes no round for this long, so that members of a round which an earlier
// coordinator formed can come back; unless max_nodes have joined that know of no round before.
inline constexpr Duration kStartHold = std::chrono::seconds(2);

class ELASTIC_EXPORT Rendezvous {
 public:
  // `start_hold` is what is left of kStartHold since the owner began; zero over a shared state.
  // REQUIRES: settings.validate().ok()
  Rendezvous(JobSettings settings, Instant now, Duration start_hold = kStartHold);
  Rendezvous(Rendezvous&&) noexcept;
  Rendezvous& operator=(Rendezvous&&) noexcept;
  ~Rendezvous();

  // Feeds one event and appends what must now be said, in order.
  void step(const RendezvousEvent& event, Instant now, std::vector<RendezvousAction>* actions);

  // When step(Tick{}) must be called; nullopt: never. May be early, never late.
  std::optional<Instant> next_deadline() const;

  // One sentence: the state and what it waits for.
  std::string describe(Instant now) const;

  // What the state has to say to one node, which has heard of rounds up to `heard`: how an agent on
  // a compare-and-set store learns what others have decided.
  void remind(const NodeId& node, std::uint64_t heard, Instant now,
              std::vector<RendezvousAction>* actions) const;

  RendezvousPhase phase() const;
  const JobSettings& settings() const;
  // The current round, or the last one while the next is being formed; round 0 before the first.
  const RoundRecord& record() const;
  const std::vector<RoundMember>& members() const;   // of record(), by node rank
  std::vector<NodeStatus> nodes(Instant now) const;  // all that are there, by id
  int waiting_nodes() const;  // for whom the running round could be restarted; spares not counted
  int spare_nodes() const;
  const JobResult* result() const;  // null while the job is open
  // Nobody is left to be told anything and nothing is pending: the owner may drop the object.
  bool is_removable() const;

  // The state as bytes: versioned, with durations and counters but no instants, so that processes
  // with other clocks can go on. What this machine observed about liveness is not part of it.
  std::string encode() const;
  // Replaces the state with what is stored; also after a write, successful or not. A node counts as
  // heard when its beat differs from the one this machine knew, and time limits that it has seen
  // before run on. Fails, changing nothing, for bytes that are damaged, of another version, or of a
  // job with other settings.
  Status load(std::string_view bytes, Instant now);
  // Continues from a state that an earlier coordinator stored, which may be older than what its
  // nodes know: a newer round that any node holds replaces it. No node is lost before store_grace
  // for not having resumed. Otherwise like load(), on a new object.
  Status restore(std::string_view bytes, Instant now);
  // Compare-and-set stores: the node that should judge the timers now; the lowest rank that is
  // alive in this machine's eyes. nullopt: nobody is there.
  std::optional<NodeId> timekeeper(Instant now) const;

 private:
  std::unique_ptr<core::RendezvousMachine> machine_;
};

}  // namespace elastic
