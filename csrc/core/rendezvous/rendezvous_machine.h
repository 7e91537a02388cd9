#pragma once

// The rendezvous state machine: decides a job's rounds, their members and ranks, and its end.
// rendezvous_machine.cc explains how it works.
//
//   core::RendezvousMachine job(settings, now, kStartHold);
//   std::vector<RendezvousAction> actions;
//   job.step(rdzv::Join{node, settings}, now, &actions);
//   // execute the actions in order; call step(rdzv::Tick{}) at job.next_deadline()
//
// Pure: no I/O, clock, threads or logging. The same calls in the same order give the same actions.
// One object holds one job. `now` never decreases.
//
// One class over several sources: rendezvous_machine.cc (events and timers),
// rendezvous_membership.cc (connected nodes), rendezvous_round.cc (rounds, budget and the end of
// the job), rendezvous_resume.cc (sessions that reconnect and coordinators that restart),
// rendezvous_describe.cc (texts), rendezvous_codec.cc (bytes). The current round is one value:
// round_state.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/timings.h"
#include "core/rendezvous/failure_policy.h"
#include "core/rendezvous/host_gate.h"
#include "core/rendezvous/liveness.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/rendezvous/round_state.h"

namespace elastic::core {

// What a node reports right after its resume arrives within this time.
inline constexpr Duration kReportsMargin = std::chrono::seconds(1);
// How often a waiting node receives the reason.
inline constexpr Duration kWaitingMessageInterval = std::chrono::seconds(10);
inline constexpr Duration kEvidenceAgeMax = std::chrono::hours(24 * 365);
// A higher round than this beyond the current one is invalid: no job forms so many.
inline constexpr std::uint64_t kRoundLeadMax = 1ULL << 40;
inline constexpr std::uint32_t kGenerationLeadMax = 1U << 20;
inline constexpr int kCounterMax = 1'000'000'000;  // of restarts and such; far below an overflow
inline bool is_counter(int value) { return value >= 0 && value <= kCounterMax; }
inline constexpr std::size_t kFormerNodesMin = 64;  // that are remembered; more in a larger job
inline constexpr int kSparesMax = 4096;

// Fails with both values when a setting of the node differs from the job's.
Status compare_settings(const JobSettings& job, const JobSettings& node);

// One of JobSettings::extra that nodes need not agree on: a name of what the node runs. A node that
// is one too many, and runs something else, is refused.
inline constexpr std::string_view kProgramSetting = "program";

// The version of encode()'s format.
inline constexpr std::uint16_t kStateVersion = 14;

// One node of the job, for status displays.
struct NodeStatus {
  NodeId id;
  std::string name;
  std::string host;
  std::string address;
  rdzv::NodePhase phase = rdzv::NodePhase::kJoined;
  int rank = -1;            // in record(); -1: not a member
  bool is_suspect = false;  // its session is closed
  Duration silence{};       // since its last message
  bool hosts_coordinator = false;
};
// How an elected coordinator continues its predecessor's job (docs/high-availability.md).
struct RendezvousSuccession {
  std::uint64_t term = 1;  // of the new coordinator: its rounds have it
  NodeId successor;        // the node whose process runs it; zero: a separate program
  // The node whose process ran the former coordinator, and which was lost with it: it is lost at
  // once. Zero: none, or the former coordinator handed its jobs over.
  NodeId lost_incumbent;
};

class RendezvousMachine {
 public:
  // `start_hold` is the rest of kStartHold since the owner's start; zero where a store keeps the
  // job's record.
  // REQUIRES: settings.validate().ok()
  RendezvousMachine(JobSettings settings, Instant now, Duration start_hold = kStartHold);

  // Feeds one event and appends the resulting actions, in order.
  void step(const RendezvousEvent& event, Instant now, std::vector<RendezvousAction>* actions);
  // The latest time for the next step(Tick{}); an earlier one is allowed. nullopt: none is needed.
  std::optional<Instant> next_deadline() const;
  std::string describe(Instant now) const;  // one sentence: the state, and what it waits for
  RendezvousPhase phase() const {
    if (is_closed()) return RendezvousPhase::kClosed;
    return round_.is_running ? RendezvousPhase::kRunning : RendezvousPhase::kForming;
  }
  // No worker of the job runs, and the next round waits for more than the nodes that are here.
  bool is_short_of_nodes() const {
    const Tally& tally = round_.tally;
    return phase() == RendezvousPhase::kForming && !round_.is_first && !round_.has_workers() &&
           tally.joined > 0 && tally.stopped + tally.awaited + tally.done == 0;
  }
  const JobSettings& settings() const { return settings_; }
  // No time of such a gap is charged to the nodes.
  bool is_stall(const rdzv::ClockGap& gap) const {
    return is_clock_gap(gap.least, settings_.node_timeout);
  }
  // The current round, or the last one while the next is being formed; round 0 before the first.
  const RoundRecord& record() const { return round_.record; }
  // Of the failure policy, that decided what followed the round before record(); "": none.
  std::string_view last_rule() const {
    return round_.cause == nullptr ? std::string_view() : round_.cause->rule;
  }
  const std::vector<RoundMember>& members() const { return round_.members; }  // by node rank
  const std::vector<FailureRule>& failure_rules() const { return rules_.of_user; }
  // A rank of the running round has reached this step.
  void note_step(std::int64_t step) { progress_.step = std::max(progress_.step, step); }
  // The members of record() that have neither left nor been lost.
  int members_left() const {
    return round_.tally.finished + round_.tally.unfinished + round_.missing;
  }
  std::vector<NodeStatus> nodes(Instant now) const;  // all nodes of the job, by id
  bool has_node(const NodeId& id) const { return nodes_.contains(id); }
  std::vector<NodeId> lost_nodes() const;       // that were lost, and are not back
  std::string name_of(const NodeId& id) const;  // also of one that left lately; "": it is unknown
  // "1 node of an excluded host leaves": why the round is to end; "": for nodes that join.
  std::string replacement_text() const;
  int waiting_nodes() const;  // nodes that a restart would let in; spares are not counted
  int spare_nodes() const;
  int replacements() const;  // both, of those with a session: for nodes that leave a running round
  // Chooses RoundRecord::resume of a new round, whose nodes are in the order of their ranks.
  using ResumePlan = ResumePoint (*)(const std::vector<NodeHoldings>& nodes, int world_size);
  // And where the node of a rank gets what it does not hold.
  using ResumeSources = std::vector<HeldSource> (*)(const std::vector<NodeHoldings>& nodes,
                                                    int world_size, const ResumePoint& point,
                                                    std::size_t node);
  void set_resume_plan(ResumePlan plan, ResumeSources sources) {
    resume_plan_ = plan;
    resume_sources_ = sources;
  }
  // Must outlive the machine. Its part of the state is encoded with the machine's.
  void set_host_gate(HostGate* gate) { host_gate_ = gate; }
  // From now on no round ends for nodes that wait before rdzv::Grow.
  void await_grow() { awaits_grow_ = true; }
  bool is_growth_due() const { return round_.is_growth_due && !is_closed(); }  // Grow is awaited
  // From now on the first round of a job is not complete before allow_start(), if one of its nodes
  // answers others that measure the network (NodeInfo::probe_port).
  void await_start() { awaits_start_ = true; }
  bool is_start_due() const { return is_start_due_ && !is_closed(); }  // allow_start() is awaited
  // rdzv::HostsChanged follows.
  void allow_start() {
    is_start_allowed_ = true;
    is_start_due_ = false;
  }
  std::vector<const NodeInfo*> probed_nodes() const;  // those of them that have joined
  // Nodes that wait for the next round, spares included.
  int joined_nodes() const { return round_.tally.joined; }
  // One phrase for the messages to nodes that wait for further ones: what else waits at the same
  // coordinator; "": nothing. Not part of the state.
  void set_neighbours(std::string text) { neighbours_ = std::move(text); }
  const JobResult* result() const { return result_.get(); }  // null while the job is open
  bool is_removable() const;  // no node is left and no action is pending
  // The state as bytes: versioned; with durations and counters but no instants, so that a process
  // with another clock can continue. What this machine observed about liveness is not included.
  std::string encode() const;
  // On a new object: takes the stored state; its time limits begin again. Fails without any change
  // if the bytes are damaged, of another version, or of a job with other settings.
  Status load(std::string_view bytes, Instant now);
  // Continues, on a new object, an earlier coordinator's state. A newer round with which a node
  // resumes replaces the stored one. A node that does not resume is lost after store_grace.
  Status restore(std::string_view bytes, Instant now);
  // The same from a record in force: rounds are not delayed, and no node holds a newer one. A node
  // that does not resume is lost after node_timeout and a second.
  Status succeed(std::string_view bytes, const RendezvousSuccession& succession, Instant now);
  bool has_resumed() const;  // after succeed(): a known node came back, or the job is closed
  // No node returns: the next job with this id begins. Round numbers continue.
  void begin_anew(const JobSettings& settings, Instant now);
  Duration takeover_limit() const;  // until such a node is lost; zero: the round was formed here

 private:
  using NodePhase = rdzv::NodePhase;
  using Nodes = std::map<NodeId, Node>;

  bool is_closed() const { return result_ != nullptr; }

  // rendezvous_machine.cc
  void on(const rdzv::Join& event);
  void on(const rdzv::Resume& event);
  void on(const rdzv::Heartbeat& event);
  void on(const rdzv::Failed& event);
  void on(const rdzv::Gone& event);
  void on(const rdzv::Done& event);
  void on(const rdzv::Leave& event);
  void on(const rdzv::Close& event);
  void on(const rdzv::SessionLost& event);
  void on(const rdzv::ProcessEnded& event);
  void on(const rdzv::Tick& event);
  void on(const rdzv::ClockGap& event);
  void on(const rdzv::HoldGrowth& event);
  void on(const rdzv::Grow& event);
  void on(const rdzv::HostsChanged& event);
  void on(const rdzv::HostBad& event);
  // Looks the sender up in the table. Messages about another round are answered here; nullopt then.
  std::optional<Response> respond(const NodeId& id, NodeMessage message,
                                  std::optional<std::uint64_t> round = std::nullopt);
  NodeRow row_of(const NodeId& id) const;
  bool is_sent_too_early(const NodeInfo& info) const;
  std::vector<NodeId> overdue_nodes();
  void check_node_deadlines();
  void expire_node(const Node& node);
  void check_timers();
  void repeat_waiting();

  // rendezvous_membership.cc
  Status check_join(const NodeInfo& node, const JobSettings& settings) const;
  Status check_surplus(const NodeInfo& node, const JobSettings& settings) const;
  void note_program(const NodeInfo& node, const JobSettings& settings);
  Status check_static_rank(const NodeInfo& node, bool has_round = false);
  // While a round is formed the nodes that wait for it learn of the node as well.
  void refuse(const NodeInfo& node, Status fault);
  void start_generation(const JobSettings& settings);
  bool begins_next_job(const NodeInfo& info) const;
  bool is_of_last_job(const NodeInfo& info) const;
  void dismiss_nodes_of_last_job();
  void begin_next_job();
  Node& insert(const NodeInfo& info, NodePhase phase);
  void admit(const NodeInfo& info);
  // ---- Nodes of excluded hosts (HostGate).
  // A round is formed without them, if min_nodes others are there; then they are refused.
  std::string why_excluded(const NodeInfo& info) const;
  void refuse_excluded(const NodeInfo& info, const std::string& why) const;
  void exclude(const FailureDecision& decision, const FailureEvent& event);
  void mark_excluded();
  void dismiss_excluded();
  // Of the joined nodes, those that are of the next round if it forms now.
  int candidates() const;
  // The round continues without its members of excluded hosts.
  bool may_replace_excluded() const;
  void enqueue(Node& node, const NodeInfo& info);
  void note_answer(const NodeInfo& info);
  void stop(Node& node);
  void finish(Node& node);
  void fail(Node& node, const FailureReport& failure);
  void record_activity(Node& node);
  void return_awaited(Node& node);
  void suspect(Node& node, Duration least_grace);
  // Removes the node and updates the round and the restart budget. Call advance() after the last
  // removal.
  // A planned departure is not counted as flapping, so it does not delay later joins.
  void depart(NodeId id, bool lost, const std::string& reason, bool is_planned = false,
              int exit_code = 0);
  Node take_out(Nodes::iterator found);
  void member_departed(const std::string& name, const std::string& host, bool lost,
                       const std::string& reason, bool is_planned = false, int exit_code = 0);
  // Only the node that is found may be changed, and through change().
  Node* find(const NodeId& id);
  const Node* find(const NodeId& id) const;
  template <typename Change>
  void change(Node& node, Change how) {
    round_.count(node, -1);
    how(node);
    round_.count(node, +1);
  }
  void recount();

  // rendezvous_round.cc
  void advance();
  // Notes the failure in `end` if it is the first.
  void note_first(const NodeInfo& node, const FailureReport& failure, Instant at,
                  RoundEnd* end) const;
  void end_round(RoundEnd end, bool is_planned = false);
  void count_crash(rdzv::RestartCause cause);
  // A departure explains the failed workers, about which no verdict was given yet.
  void explain_failures(bool is_planned);
  void send_restart(Node& node);
  Duration grace_of(const Node& node) const;
  void recall(bool members_only);
  void recall_as_needed();
  JobResult failure_result() const;
  std::vector<std::string> finished_names() const;
  void check_verdict();
  // Spends a restart, or closes the job because none is left.
  void charge(rdzv::RestartCause cause, const std::string& node, const std::string& what);
  // The rule of the failure policy that decides about it; it is remembered.
  FailureDecision decide(const FailureEvent& event);
  // The round has ended by a failure or a loss: once for each round.
  void count_progress();
  // What follows the failure that ended the round, and that no loss explains.
  void judge_failure();
  // What follows a loss; `survives`: enough nodes are left.
  void judge_loss(FailureKind kind, const std::string& name, const std::string& host,
                  const std::string& what, bool survives);
  std::string nodes_left() const;  // ": 1 of at least 2 nodes remain and "
  JobResult loss_result(const std::string& node, const std::string& message) const;
  void check_min_nodes();
  bool may_complete();
  bool may_start();
  void complete();
  std::vector<Node*> order_by_rank(const std::vector<Node*>& chosen);
  void install_round(const std::vector<Node*>& by_rank);
  void send_round(const std::vector<Node*>& by_rank) const;
  ResumePoint plan_resume(const std::vector<Node*>& by_rank) const;
  std::vector<HeldSource> sources_for(const Node& node) const;
  rdzv::Round round_for(const Node& node, std::shared_ptr<const RoundRecord> record) const;
  std::vector<Node*> choose_members();
  void check_growth();
  bool may_grow() const;
  void grow(const std::string& why = "");
  // Nodes that join are delayed, since others were lost soon after they had joined.
  bool is_flapping() const {
    return round_.flaps > kFlapsForgiven && settings_.restart_backoff > Duration::zero();
  }
  Duration growth_delay() const;
  void close_with_success();
  void close(JobResult result);
  void announce_round_over();
  int available_nodes() const;

  // rendezvous_resume.cc
  // Sends what a node needs whose latest round is `received`.
  void remind(const NodeId& id, std::uint64_t received) const;
  bool answer_closed(const rdzv::Resume& event);
  void restore_round(const rdzv::Resume& event);
  void restore_member(const rdzv::Resume& event);
  void drop_stale_round(const NodeId& resumed, const std::string& why);
  void resume_stopped(Node& node, const rdzv::Resume& event);
  bool update_from_resume(Node& node, const rdzv::Resume& event);
  void replay(Node& node, const rdzv::Resume& event);
  Status take_over(std::string_view bytes, const RendezvousSuccession& succession,
                   Instant hold_until, Instant now);
  // From the object's start until a node that has not resumed is lost.
  Duration resume_limit() const;
  // The same after an election.
  Duration succession_limit() const;
  bool was_elected() const { return succession_.term > 1; }
  std::string await_reason(const NodeId& id) const;
  bool may_take_static_rank(const NodeInfo& node);
  bool has_finished(const NodeId& id, std::uint64_t round) const;
  // A coordinator ends with the agent that hosts it: that member cannot resume.
  void mark_host_lost();
  void finish_rebuild();
  // A member that has just resumed may report next that the job is being stopped (HoldGrowth).
  void hold_growth_for_reports() { growth_from_ = add_saturating(now_, kReportsMargin); }
  // A round of an earlier job of this id was adopted, and all nodes of a new one are here.
  void check_newcomers();
  Instant replaced_from() const;
  void mark_missing_lost(const std::string& reason);

  // rendezvous_describe.cc
  struct Description {
    std::string text;
    std::string then = {};           // what happens at `at`: "gives up"
    std::optional<Instant> at = {};  // Instant::max() is never

    std::string message() const { return then.empty() ? text : text + ", " + then; }
    std::optional<Duration> remaining(Instant now) const {
      if (!at) return std::nullopt;
      return std::max(*at - now, Duration::zero());
    }
  };
  Description describe_state(Instant now, bool with_names) const;
  Description describe_forming(Instant now, bool with_names) const;
  Description describe_running() const;
  Description describe_waiting(Instant now, const Node& node) const;
  std::string names_of(NodePhase phase, int count) const;

  // rendezvous_codec.cc
  friend class RendezvousCodec;

  template <typename Action>
  void emit(Action action) const {
    out_->push_back(std::move(action));
  }
  void send_waiting(const Node& node) const;
  void send_evicted(const NodeId& id) const;
  bool has_left(const NodeId& id) const {
    const FormerNode* const known = former_nodes_.find(id);
    return known != nullptr && !known->lost;
  }
  StoredInstant stored(Instant at) const {
    if (at == Instant::max()) return {};
    return {at, at - now_};
  }
  void arm(Timer timer, Instant at) { round_.arm(timer, stored(at)); }
  void arm_after(Timer timer, Duration wait) { arm(timer, add_saturating(now_, wait)); }
  void set_deadline(Node& node, Instant deadline) { set_deadline(node, stored(deadline)); }
  void set_deadline(Node& node, StoredInstant deadline);
  StoredInstant join_deadline(const NodeId& id);
  bool lacks_node() const;
  Duration join_limit() const;
  void shorten_joins();

  JobSettings settings_;

  RoundState round_;
  std::uint64_t highest_seen_ = 0;  // of all rounds that a node has reported
  Nodes nodes_;
  std::map<int, NodeId> static_rank_owners_;
  std::uint64_t arrivals_ = 0;
  int restarts_ = 0;
  int membership_changes_ = 0;
  std::string bad_host_;  // before the first round: its node does not join
  FailureRules rules_;    // of the settings
  std::vector<PastFailure> past_failures_;
  int stop_without_progress_ = 0;  // of the settings
  ProgressRecord progress_;
  std::shared_ptr<const JobResult> result_;           // null while the job is open
  std::shared_ptr<const JobResult> previous_result_;  // of the generation before this one
  FormerNodes former_nodes_;

  // Observed or derived here; not part of the encoding.
  Liveness liveness_;
  RendezvousSuccession succession_;   // term 1: this is the job's first coordinator
  std::string refused_;               // the last node, and why; "": none for this round
  std::string neighbours_;            // as set_neighbours()
  ResumePlan resume_plan_ = nullptr;  // null: no round continues from a step
  ResumeSources resume_sources_ = nullptr;
  HostGate* host_gate_ = nullptr;  // null: no host is excluded
  bool awaits_grow_ = false;       // as await_grow()
  bool awaits_start_ = false;      // as await_start()
  bool is_start_due_ = false;
  bool is_start_allowed_ = false;
  // Until the job ends. Not encoded: nodes send the stop notice again when they resume.
  bool holds_growth_ = false;
  bool is_one_program_ = true;    // every node so far named the settings' program
  bool has_resumes_ = false;      // a node has resumed a round that an earlier coordinator formed
  bool is_next_job_due_ = false;  // begin_next_job() is called at the end of this step
  Instant growth_from_ = Instant::min();     // the round does not grow before
  Instant deadline_check_ = Instant::max();  // no node's deadline is earlier
  Instant now_;
  Instant timers_checked_at_ = Instant::min();  // when the timers were last judged
  std::vector<RendezvousAction>* out_ = nullptr;
};

}  // namespace elastic::core
