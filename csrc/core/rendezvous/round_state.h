#pragma once

// One round as a value: its record and members, why it ended, and what the round that follows it
// waits for. The rendezvous machine has one; replica groups would give it one for each group. And
// the nodes that are no longer of the job.
//
// It holds facts. The rules that change them need the nodes and the settings of the job, and are
// in the machine (rendezvous_round.cc).

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/rendezvous/first_failure.h"
#include "core/rendezvous/rank_assign.h"
#include "core/rendezvous/rendezvous_events.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

// A round that loses a member before this age counts as flapping, unless its leave was planned.
inline constexpr Duration kFlapRoundAge = std::chrono::seconds(60);
inline constexpr int kFlapsForgiven = 1;  // further ones delay the admission of nodes
// A round that a worker's failure ends before this age counts towards the restart back-off.
inline constexpr Duration kCrashAge = std::chrono::seconds(5);
// A failure before this age may be repeated in the same way: RoundCause::same_failures.
inline constexpr Duration kSameFailureAge = std::chrono::minutes(1);

// A point of time that is encoded as how far away it was when it was set, or as its age: a process
// that loads the state, with another clock, counts from then.
struct StoredInstant {
  Instant at = Instant::max();  // on this process's clock; max: never
  Duration away{};              // when it was set

  bool is_set() const { return at != Instant::max(); }
};

struct Node {
  NodeInfo info;
  rdzv::NodePhase phase = rdzv::NodePhase::kJoined;
  int rank = -1;         // in the current round, or in the one that has ended; -1: not a member
  bool suspect = false;  // its session is closed
  std::uint64_t arrival = 0;     // orders joins; the last arrivals beyond max_nodes become spares
  std::uint64_t done_round = 0;  // the last round that it finished; 0: none
  StoredInstant deadline;        // joined: its join times out; stopping: it is evicted
  // Not encoded:
  bool is_newcomer = false;  // its first Join was sent to this machine, not to an earlier one
  bool is_awaited = false;   // known from a stored state; it has not resumed yet
  bool is_excluded = false;  // its host is (HostGate)
  // Done: the ended round whose Restart it has answered by a Join; 0: none. It was sent Restart
  // before its Done, or its resume, arrived.
  std::uint64_t answered_round = 0;
};

// Why the last round ended, and what that costs.
struct RoundEnd {
  rdzv::RestartCause cause = rdzv::RestartCause::kRejoin;
  std::string reason = {};
  std::string departed = {};  // the node whose loss or leave ended it, or explains its failures
  StopCause departed_as = StopCause::kNodeLeft;  // lost, left, or was told to stop
  FirstFailure failure = {};
  StoredInstant failure_at = {};  // of its evidence
  bool verdict_pending = false;   // workers failed, and a loss may still explain it
  bool charged = false;
  int exit_code = 0;  // rdzv::Leave, of the node without which the job has too few; 0: it was lost
  std::string rule = {};             // of the failure policy, that decided what follows; ""
  bool is_progress_counted = false;  // in ProgressRecord
  bool is_round_over_sent = false;   // rank 0 was notified that no workers are left
  bool is_crash = false;             // counted in RoundState::crashes; not encoded
};

// Where this process has the round from.
enum class RoundOrigin : std::uint8_t {
  kUnknown,  // it has formed none: a node may hold a newer one than that of a stored state
  kAdopted,  // from a node that holds it; members have not resumed yet
  kRebuilt,  // adopted; all members have resumed, or are lost
  kOwn,      // it has formed the round, or has begun the generation
};

// Instant::max(): not armed. They are encoded in this order.
enum class Timer : std::uint8_t {
  kStart,          // no round completes before
  kLastCall,       // the first round completes with the nodes that have joined
  kGrowth,         // the running round is restarted to admit the waiting nodes
  kBelowMinNodes,  // fewer than min_nodes: the job fails
  kShrink,         // a smaller round may complete
  kRebuild,        // members that have not resumed are lost
  kVerdict,        // a loss no longer explains the failed workers
  kResend,         // waiting nodes receive the reason again
  kBackoff,        // no round completes before: workers have failed several times in a row
};
inline constexpr std::size_t kTimers = 9;

// The nodes of the round and those that wait for the next one, by state. Kept up to date by
// RoundState::count() for every change of a node.
struct Tally {
  int joined = 0;
  int joined_suspect = 0;
  int working = 0;
  int stopped = 0;
  int done = 0;
  int done_members = 0;  // done, and of the current round
  int unfinished = 0;    // members of the current round that have not finished it
  int finished = 0;      // members that have, whether they wait or were called back
  int awaited = 0;       // members that are known from a stored state and have not resumed
  // Without those whose host is excluded:
  int joined_eligible = 0;
  int joined_ready = 0;  // and not suspect
  int eligible = 0;      // of all states, not suspect

  int excluded_members = 0;  // unfinished members of the current round, whose host is excluded
};

// How far the rounds of a job came.
struct ProgressRecord {
  std::int64_t step = -1;  // the newest of the current round; -1: no rank has reported one
  std::int64_t best = -1;  // of the rounds before that ended by a failure or a loss
  int fruitless = 0;       // such rounds in a row that did not pass the best
};

struct RoundState {
  bool is_running = false;  // false: it has ended, or none was formed yet; the next one is forming
  bool is_first = true;     // no round of this generation has been completed
  RoundRecord record;
  std::shared_ptr<const RoundCause> cause;  // of the end of the round before; null: none is known
  std::vector<RoundMember> members;         // by node rank
  // The ranks of each member, at its node rank. Not encoded; empty while members of an adopted
  // round are missing.
  std::vector<NodeRanks> ranks;
  int finishers_departed = 0;  // members that finished the round and have left since
  int flaps = 0;    // rounds that lost a member before kFlapRoundAge; a longer round resets it
  int crashes = 0;  // rounds in a row that ended before kCrashAge by a worker's failure
  StoredInstant started;
  StoredInstant first_waiting_at;  // when the oldest node that waits for growth joined
  StoredInstant last_waiting_at;   // when the newest did
  RoundEnd end;
  StoredInstant timers[kTimers];

  // Observed or derived by this process; not encoded.
  RoundOrigin origin = RoundOrigin::kUnknown;
  bool may_be_stale = false;   // adopted: perhaps of an earlier job of this id
  int missing = 0;             // members with fate kMissing
  bool is_growth_due = false;  // the owner is to say when the round ends for nodes that wait
  Tally tally;

  void count(const Node& node, int sign);
  void count_missing();

  Instant at(Timer timer) const { return timers[static_cast<std::size_t>(timer)].at; }
  bool is_armed(Timer timer) const { return at(timer) != Instant::max(); }
  void arm(Timer timer, StoredInstant at) { timers[static_cast<std::size_t>(timer)] = at; }
  void disarm(Timer timer) { arm(timer, {}); }
  // Disarms the timer if it has expired.
  bool take_due(Timer timer, Instant now);

  // The newest round that a node holds replaces this one.
  bool may_adopt() const {
    return origin == RoundOrigin::kUnknown || origin == RoundOrigin::kAdopted;
  }
  // An earlier coordinator has formed it.
  bool is_adopted() const {
    return origin == RoundOrigin::kAdopted || origin == RoundOrigin::kRebuilt;
  }
  RoundMember& member(int rank) { return members[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(members.size()); }
  // I1: the next round must wait for these.
  bool has_workers() const { return tally.working > 0 || missing > 0; }
  // Every rank of the round has exited with 0.
  bool has_succeeded() const;
  std::vector<std::string> lost_names() const;
  NodeAssignment assignment_of(const Node& member) const;

  // The round becomes number `round`, with these members in the order of their ranks.
  void begin(std::uint64_t round, const std::vector<Node*>& by_rank, StoredInstant now);
  // The round that a node holds, of an earlier coordinator: all members are missing.
  void adopt(const HeldRound& held, StoredInstant now);
  // Why the round ends. REQUIRES: it is over
  StopReason stop_reason() const;
  // The same, for the round that follows.
  RoundCause next_cause() const;
};

// The ranks of each member, at its node rank.
std::vector<NodeRanks> ranks_of(const std::vector<RoundMember>& members);
NodeAssignment make_assignment(int group_rank, int local_world_size, const NodeRanks& ranks);

struct FormerNode {
  NodeId id;
  std::string name;
  std::string reason;
  bool lost = false;             // the node did not leave itself
  std::uint64_t round = 0;       // the last round that it was a member of
  std::uint64_t done_round = 0;  // the last round that it finished
  bool timed_out = false;        // its join was not granted in time
  // Lost while it waited for the first round: when that wait ends, also if it joins again.
  StoredInstant join_deadline = {};
};

// The nodes that have left a job or were lost, oldest first. find() is O(log n), since after the
// loss of many nodes each of them is looked up.
class FormerNodes {
 public:
  // Forgets the oldest ones beyond `max`. REQUIRES: max > 0
  void add(FormerNode node, std::size_t max);
  void assign(std::deque<FormerNode> all);
  void clear() { assign({}); }

  FormerNode& newest() { return all_.back(); }  // REQUIRES: one is kept
  // The latest entry of the node; null: none is kept.
  const FormerNode* find(const NodeId& id) const;
  const std::deque<FormerNode>& all() const { return all_; }
  // The ids must not be changed.
  std::deque<FormerNode>::iterator begin() { return all_.begin(); }
  std::deque<FormerNode>::iterator end() { return all_.end(); }

 private:
  std::deque<FormerNode> all_;
  std::uint64_t first_ = 0;                 // the number of the oldest one
  std::map<NodeId, std::uint64_t> latest_;  // the number of each node's latest entry
};

}  // namespace elastic::core
