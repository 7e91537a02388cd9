#pragma once

// The state behind elastic::Rendezvous and the rules that move it. rendezvous.cc explains how it
// works.
//
// One class over several sources: rendezvous.cc (events and timers), rendezvous_membership.cc (who
// is there), rendezvous_round.cc (rounds, budget and the end of the job), rendezvous_resume.cc
// (sessions and coordinators that come back), rendezvous_describe.cc (sentences),
// rendezvous_codec.cc (bytes).

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/rendezvous/liveness.h"
#include "core/rendezvous/rank_assign.h"
#include "core/rendezvous/rendezvous_table.h"
#include "elastic/rendezvous.h"

namespace elastic::core {

// Nobody is waited for longer than its stop grace and this.
inline constexpr Duration kStopTimeoutMargin = std::chrono::seconds(10);
// How often a node that waits for a round is told why.
inline constexpr Duration kWaitingMessageInterval = std::chrono::seconds(10);
// A round that loses a member before this age counts as flapping.
inline constexpr Duration kFlapRoundAge = std::chrono::seconds(60);
// A round that a worker's failure ends before this age counts towards the restart back-off.
inline constexpr Duration kCrashAge = std::chrono::seconds(5);
inline constexpr Duration kEvidenceAgeMax = std::chrono::hours(24 * 365);
// No node has seen rounds that are further ahead: a job forms fewer in a lifetime.
inline constexpr std::uint64_t kRoundLeadMax = 1ULL << 40;
inline constexpr std::size_t kFormerNodesMax = 64;
inline constexpr int kSparesMax = 4096;

// A point of time in a state that several processes share, each with a clock of its own: who sets
// it numbers it and says how far away it is, and everybody else counts from when it first saw that
// number.
struct SharedInstant {
  Instant at = Instant::max();  // on this process's clock; max: never
  Duration away{};              // when it was set
  std::uint64_t number = 0;     // 0: never
};

struct Node {
  NodeInfo info;
  rdzv::NodePhase phase = rdzv::NodePhase::kJoined;
  int rank = -1;              // in the current round, or in the one that has ended; -1: no member
  bool suspect = false;       // its session is closed
  std::uint64_t arrival = 0;  // orders joins; newcomers beyond max_nodes are the last to arrive
  std::uint64_t done_round = 0;  // the last round that it finished; 0: none
  std::uint64_t beat = 0;        // counts signs of life, for observers of a shared state
  SharedInstant deadline;        // joined: its join times out; told to stop: it is evicted
  // Not encoded:
  bool is_newcomer = false;  // it joined this machine, and no other one before
  bool is_awaited = false;   // known from a stored state; it has not resumed yet
};

struct FormerNode {
  NodeId id;
  std::string name;
  std::string reason;
  bool lost = false;             // it was not its own decision
  std::uint64_t round = 0;       // the last that it was told it is a member of
  std::uint64_t done_round = 0;  // what it had finished
  bool timed_out = false;        // its join was not granted in time
};

// Why the last round ended, and what that costs.
struct RoundEnd {
  rdzv::RestartCause cause = rdzv::RestartCause::kRejoin;
  std::string reason;
  std::optional<FailureReport> failure;  // the earliest evidence
  SharedInstant failure_at;
  std::string failed_node;
  bool verdict_pending = false;  // workers failed, and a loss may still explain it
  bool charged = false;
  bool is_round_over_sent = false;  // rank 0 knows that no workers are left
};

// Instant::max(): not armed. The order is that of the encoding.
enum class Timer : std::uint8_t {
  kStartHold,      // no round completes before
  kLastCall,       // the first round completes with what has joined
  kGrowth,         // the running round is restarted to admit those who wait
  kBelowMinNodes,  // fewer than min_nodes: the job fails
  kShrink,         // a smaller round may complete
  kRebuild,        // members that have not resumed are lost
  kVerdict,        // no loss explains the failed workers any more
  kResend,         // those who wait are told why again
  kBackoff,        // no round completes before: workers have failed several times in a row
};
inline constexpr std::size_t kTimers = 9;

// Counted by count() alone, from every node.
struct Tally {
  int joined = 0;
  int joined_suspect = 0;
  int working = 0;
  int stopped = 0;
  int done = 0;
  int done_members = 0;  // done, and of the current round
  int unfinished = 0;    // members of the current round that have not finished it
  int finished = 0;      // members that have, whether they wait or were called back
};

// The ranks of each member, at its node rank, and one member's share as it is told.
std::vector<NodeRanks> ranks_of(const std::vector<RoundMember>& members);
NodeAssignment assignment_of(int group_rank, int local_world_size, const NodeRanks& ranks);

// Fails with both values when a node does not say what the job has.
Status compare_settings(const JobSettings& job, const JobSettings& node);

class RendezvousMachine {
 public:
  RendezvousMachine(JobSettings settings, Instant now, Duration start_hold);

  void step(const RendezvousEvent& event, Instant now, std::vector<RendezvousAction>* actions);
  std::optional<Instant> next_deadline() const;
  std::string describe(Instant now) const { return describe_state(now, true); }
  void remind(const NodeId& id, std::uint64_t record_activity, Instant now,
              std::vector<RendezvousAction>* actions) const;
  std::string encode() const;
  Status load(std::string_view bytes, Instant now);
  Status restore(std::string_view bytes, Instant now);
  std::optional<NodeId> timekeeper(Instant now) const;
  std::vector<NodeStatus> nodes(Instant now) const;
  int waiting_nodes() const;
  int spare_nodes() const;
  bool is_removable() const;

  RendezvousPhase phase() const { return phase_; }
  const JobSettings& settings() const { return settings_; }
  const RoundRecord& record() const { return record_; }
  const std::vector<RoundMember>& members() const { return members_; }
  const JobResult* result() const { return result_.get(); }

 private:
  using NodePhase = rdzv::NodePhase;
  using Nodes = std::map<NodeId, Node>;

  // rendezvous.cc
  void on(const rdzv::Join& event);
  void on(const rdzv::Resume& event);
  void on(const rdzv::Heartbeat& event);
  void on(const rdzv::Failed& event);
  void on(const rdzv::Gone& event);
  void on(const rdzv::Done& event);
  void on(const rdzv::Leave& event);
  void on(const rdzv::Close& event);
  void on(const rdzv::SessionLost& event);
  void on(const rdzv::Tick& event);
  void on(const rdzv::ClockGap& event);
  // Looks the sender up in the table. Messages about another round are answered here; nullopt then.
  std::optional<Response> respond(const NodeId& id, NodeMessage message,
                                  std::optional<std::uint64_t> round = std::nullopt);
  NodeRow row_of(const NodeId& id) const;
  bool is_sent_too_early(const NodeInfo& info) const;
  std::vector<NodeId> overdue_nodes();
  void check_node_deadlines();
  void expire_node(const Node& node);
  void check_timers();
  bool is_due(Timer timer);  // disarms it

  // rendezvous_membership.cc
  Status check_join(const NodeInfo& node, const JobSettings& settings) const;
  Status check_static_rank(const NodeInfo& node);
  void start_generation(const JobSettings& settings);
  bool begins_next_job(const NodeInfo& info) const;
  void dismiss_nodes_of_last_job();
  void begin_next_job();
  Node& insert(const NodeInfo& info, NodePhase phase);
  void admit(const NodeInfo& info);
  void enqueue(Node& node, const NodeInfo& info);
  void stop(Node& node);
  void finish(Node& node);
  void fail(Node& node, const FailureReport& failure);
  void record_activity(Node& node);
  void suspect(Node& node, Duration least_grace);
  // Takes the node out and lets the round and the budget feel it. Call advance() after the last
  // one.
  void depart(NodeId id, bool lost, const std::string& reason);
  Node take_out(Nodes::iterator found);
  void member_departed(const std::string& name, bool lost, const std::string& reason);
  // Only the node that is found may be changed, and through change().
  Node* find(const NodeId& id);
  const Node* find(const NodeId& id) const;
  template <typename Change>
  void change(Node& node, Change how) {
    count(node, -1);
    how(node);
    count(node, +1);
  }
  void count(const Node& node, int sign);
  void recount();

  // rendezvous_round.cc
  void advance();
  void end_round(rdzv::RestartCause cause, std::string reason);
  void count_crash(rdzv::RestartCause cause);
  void send_restart(Node& node);
  Duration grace_of(const Node& node) const;
  void recall(bool members_only);
  void recall_as_needed();
  JobResult failure_result() const;
  // Every rank of the current round has exited with 0.
  bool has_succeeded() const;
  void check_verdict();
  // Spends a restart, or closes the job because none is left.
  void charge(rdzv::RestartCause cause, const std::string& node, const std::string& what);
  void check_min_nodes();
  bool may_complete();
  void complete();
  std::vector<Node*> order_by_rank(const std::vector<Node*>& chosen);
  void install_round(const std::vector<Node*>& by_rank);
  void send_round(const std::vector<Node*>& by_rank) const;
  std::vector<Node*> choose_members();
  void check_growth();
  bool may_grow() const;
  Duration growth_delay() const;
  void succeed();
  void close(JobResult result);
  void announce_round_over();
  std::vector<std::string> lost_names() const;
  int available_nodes() const;

  // rendezvous_resume.cc
  bool answer_closed(const rdzv::Resume& event);
  void restore_round(const rdzv::Resume& event);
  void restore_member(const rdzv::Resume& event);
  void drop_stale_round(const NodeId& resumed);
  void resume_stopped(Node& node, const rdzv::Resume& event);
  bool update_from_resume(Node& node, const rdzv::Resume& event);
  void replay(Node& node, const rdzv::Resume& event);
  bool has_finished(const NodeId& id, std::uint64_t round) const;
  // A coordinator dies with the agent that hosts it: that member will not come back.
  void mark_host_lost();
  void finish_rebuild();
  void mark_missing_lost(const std::string& reason);

  // rendezvous_describe.cc
  std::string describe_state(Instant now, bool with_names) const;
  std::string describe_forming(Instant now, bool with_names) const;
  std::string describe_running(Instant now) const;
  std::string describe_waiting(Instant now, const Node& node) const;
  std::string names_of(NodePhase phase) const;

  // rendezvous_codec.cc
  friend class RendezvousCodec;

  template <typename Action>
  void emit(Action action) const {
    out_->push_back(std::move(action));
  }
  void send_waiting(const Node& node) const;
  void send_evicted(const NodeId& id) const;
  rdzv::Evicted eviction_of(const NodeId& id) const;
  const FormerNode* former_node(const NodeId& id) const;
  bool has_left(const NodeId& id) const {
    const FormerNode* const known = former_node(id);
    return known != nullptr && !known->lost;
  }
  SharedInstant make_shared_instant(Instant at) {
    if (at == Instant::max()) return {};
    return {at, at - now_, ++marks_};
  }
  void arm(Timer timer, Instant at) {
    timers_[static_cast<std::size_t>(timer)] = make_shared_instant(at);
  }
  void arm_after(Timer timer, Duration wait) { arm(timer, add_saturating(now_, wait)); }
  void disarm(Timer timer) { arm(timer, Instant::max()); }
  Instant at(Timer timer) const { return timers_[static_cast<std::size_t>(timer)].at; }
  bool is_armed(Timer timer) const { return at(timer) != Instant::max(); }
  void set_deadline(Node& node, Instant deadline);

  JobSettings settings_;

  RendezvousPhase phase_ = RendezvousPhase::kForming;
  std::uint64_t highest_seen_ = 0;  // of all rounds that anybody spoke of
  bool is_first_ = true;            // no round of this generation has been completed
  bool is_fresh_ = true;            // this object has completed no round, nor rebuilt one
  bool is_adopted_ = false;         // an earlier coordinator formed the current round
  bool is_next_job_due_ = false;    // closed: begin_next_job() is called at the end of this step
  RoundRecord record_;
  std::vector<RoundMember> members_;  // by node rank
  int missing_ = 0;                   // members with fate kMissing
  int finishers_departed_ = 0;        // members that had finished the round and have gone since
  Nodes nodes_;
  std::map<int, NodeId> static_rank_owners_;  // with static ranks: who has which
  std::uint64_t arrivals_ = 0;
  int restarts_ = 0;
  int membership_changes_ = 0;
  int flaps_ = 0;
  int crashes_ = 0;  // rounds in a row that ended before kCrashAge by a worker's failure
  SharedInstant round_started_;
  SharedInstant first_waiting_at_;  // when the oldest of those who wait for growth joined
  SharedInstant last_waiting_;
  RoundEnd end_;
  std::shared_ptr<const JobResult> result_;
  std::shared_ptr<const JobResult> previous_result_;  // of the generation before this one
  std::deque<FormerNode> former_nodes_;
  SharedInstant timers_[kTimers];
  std::uint64_t marks_ = 0;

  // Observed or derived here; not part of the encoding.
  Liveness liveness_;
  std::map<std::uint64_t, Instant> seen_marks_;  // of the state that was loaded last
  bool has_resumes_ = false;                     // somebody knew a machine before this one
  Tally tally_;
  Instant deadline_check_ = Instant::max();  // no node's deadline is earlier
  Instant now_;
  Instant timers_checked_at_ = Instant::min();  // when the timers were last judged
  std::vector<RendezvousAction>* out_ = nullptr;
};

}  // namespace elastic::core
