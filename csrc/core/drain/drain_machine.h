#pragma once

// The coordinator's part of an agreed step: after a notice it stops all ranks of a job at one step,
// or lets nodes leave at one while the others continue with their workers.
//
// Pure: the same calls in the same order give the same actions. Not thread-safe. One object for one
// job; it runs beside the rendezvous machine, and ends the job through it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/parts.h"
#include "core/base/round_events.h"
#include "core/drain/drain_types.h"
#include "core/hang/hang_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

namespace drain_event {
// observer: waits for an answer; 0: none does. A notice without any time left was given to an
// earlier coordinator.
struct Noticed {
  drain::Notice notice;
  std::uint64_t observer = 0;
  Duration resume_limit{};  // as in Began, if no node of a round is known
  int spares = 0;           // nodes that wait for the next round
};
struct Replied {
  NodeId node;
  drain::Reply reply;
  int spares = 0;  // as in Noticed
};
// No rank will reach a step soon: the next round waits for nodes that may never join, or will.
struct Idle {
  std::string why;
};
// The round is to end for `nodes` more nodes, which wait: between two steps, or at once.
struct GrowthDue {
  int nodes = 0;
  std::string why = {};  // "1 node of an excluded host leaves"; "": nodes join
};
// The round no longer has to end for more nodes.
struct GrowthOff {};
}  // namespace drain_event

using DrainEvent =
    std::variant<round_event::Began, round_event::Ended, round_event::Over, round_event::Leaving,
                 round_event::Left, round_event::Progressed, drain_event::Noticed,
                 drain_event::Replied, drain_event::Idle, drain_event::GrowthDue,
                 drain_event::GrowthOff, round_event::ClockGap, PartTick>;

namespace drain_action {
struct Send {
  NodeId to;
  drain::Order order;
};
// To every node's log, and the coordinator's.
struct Announce {
  std::string text;
};
// The job ends with this result: rdzv::Close.
struct Close {
  JobResult result;
};
// The answer to an observer: the job stops at a step, or why it does not; or the nodes leave.
struct Inform {
  std::uint64_t observer = 0;
  bool is_agreed = false;
  std::string text;
};
// The job is to stop after all, so it must not grow: rdzv::HoldGrowth.
struct HoldGrowth {};
// After GrowthDue: every rank waits at a step, or none will: rdzv::Grow.
struct Grow {
  std::string why = {};  // not at an agreed step; "": it is at one, or none was expected
};
}  // namespace drain_action

using DrainAction =
    std::variant<drain_action::Send, drain_action::Announce, drain_action::Close,
                 drain_action::Inform, drain_action::HoldGrowth, drain_action::Grow>;

enum class DrainPhase : std::uint8_t {
  kIdle,        // no notice was given
  kAwaitRound,  // no round runs, or not all of its nodes are connected
  kAwaitSteps,  // a rank has not reported a step yet
  kAsking,      // the nodes are asked for their steps
  kProposed,    // a tentative step was sent
  kCommitted,   // the step is agreed
  kReached,     // every rank has stopped; they save their state and exit
  kOver,        // the job was ended, or has ended
  kHolding,     // nodes leave or join: the step is agreed, and ranks that reach it wait
  kReleased,    // every rank waits at it, and nodes that leave were told so: the round ends
};

// The time for the nodes to reply.
inline constexpr Duration kDrainReplyTimeout = std::chrono::seconds(2);
// How long a rank may stay without a step after the first rank has reported one. Then the other
// ranks agree without it.
inline constexpr Duration kDrainSilentGrace = std::chrono::seconds(10);
// Between a node's signal and the first question: a scheduler that stops the whole job sends it to
// every node.
inline constexpr Duration kDrainGatherTime = std::chrono::seconds(1);
// For the leave of a node that was told to leave. It follows at once; a lost node is noticed
// earlier.
inline constexpr Duration kDrainReleaseTimeout = std::chrono::seconds(60);
// How long nodes that join wait for the ranks of the round to reach a step.
inline constexpr Duration kDrainGrowthLimit = std::chrono::seconds(60);
// The shortest time between two questions.
inline constexpr Duration kDrainAskInterval = std::chrono::milliseconds(100);

// A part of core::Job.
class DrainMachine {
 public:
  using Event = DrainEvent;
  using Out = std::vector<DrainAction>;

  void step(const DrainEvent& event, Instant now, std::vector<DrainAction>* out);
  // When step(Tick{}) must be called; nullopt: never.
  std::optional<Instant> next_deadline() const;
  // The next job of the id follows.
  void reset() { *this = {}; }

  DrainPhase phase() const { return phase_; }
  // The node is to leave the job at an agreed step.
  bool is_leaving(const NodeId& node) const;
  // For status displays; "" without a notice.
  std::string describe() const;

 private:
  struct Node {
    std::string name;
    bool has_replied = false;  // to the current order
    drain::Reply reply;        // the last one
    std::int32_t reporting = 0;
  };
  void on(const round_event::Began& event);
  void on(const round_event::Ended& event);
  void on(const round_event::Over& event);
  void on(const round_event::Leaving& event) { on(round_event::Left{event.node}); }
  void on(const round_event::Left& event);
  void on(const round_event::Progressed& event);
  void on(const drain_event::Noticed& event);
  void on(const drain_event::Replied& event);
  void on(const drain_event::Idle& event);
  void on(const drain_event::GrowthDue& event);
  void on(const drain_event::GrowthOff& event);
  void on(const round_event::ClockGap& event);
  void on(const PartTick& event);

  static constexpr const char* kNoMember = "the node is not a member of the round";

  void begin();
  // drain_departure.cc
  bool is_growth() const { return is_departure_ && has_time_ && leaving_.empty(); }
  bool can_reach_step() const;
  bool can_any_continue() const;
  void note_departure(const drain_event::Noticed& event, Instant deadline);
  void begin_departure(const std::string& reason);
  void begin_growth();
  void end_growth(std::string why = "");
  void stop_instead(const drain_event::Noticed& event, Instant deadline);
  bool prepare_departure();
  bool check_departure();
  std::string obstacle() const;
  bool has_finished(const NodeId& id) const;
  bool have_leaving_finished() const;
  bool is_given_up(const drain::Notice& notice) const;
  void begin_holding();
  void check_waiting();
  void release(std::vector<NodeId> nodes);
  void forget_released();
  void give_up_departure(const std::string& why);
  void end_departure(const std::string& why, const std::string& growth_why = "");
  std::string leaving_names() const;
  std::string joining_text() const;
  std::size_t num_staying() const;

  void note_takeover(Duration resume_limit);
  void ask();
  void ask_again();
  void decide();
  void propose();
  void commit(std::int64_t step);
  void withdraw();
  void check_reached();
  void stop_now(const std::string& why);
  void finish(const JobResult& result);
  void count(const Node& node, int sign);
  void note(Node& node, const drain::Reply& reply, bool has_replied);
  void forget_nodes();
  bool all_replied() const { return tally_.replied == nodes_.size(); }
  bool is_complete() const {
    return !nodes_.empty() && nodes_.size() == static_cast<std::size_t>(num_members_);
  }
  bool is_open() const {
    return phase_ != DrainPhase::kIdle && phase_ != DrainPhase::kReached &&
           phase_ != DrainPhase::kOver;
  }
  std::string unreached_names() const;
  std::string silent_text() const;
  drain::Order order_of(drain::Order::Kind kind) const;
  void send(NodeId to);
  void send_release();
  void send_all(drain::Order::Kind kind);
  void announce(std::string text);
  void announce_once(std::string text);
  void inform(bool is_agreed, const std::string& text);

  DrainPhase phase_ = DrainPhase::kIdle;
  Instant now_;
  std::vector<DrainAction>* out_ = nullptr;

  // ---- The notice.
  std::string reason_;
  Instant deadline_;
  bool is_departure_ = false;  // nodes leave or join, and the job continues
  int joining_ = 0;            // nodes for which the round is to end
  std::string growth_why_;     // as in GrowthDue
  Instant growth_deadline_;    // of their wait for a step
  bool stops_job_ = false;     // if they cannot
  bool has_time_ = false;      // a notice of them had time left
  bool withdraws_ = false;     // a step for nodes that join, perhaps of an earlier coordinator
  std::vector<NodeId> leaving_;
  std::vector<NodeId> released_;  // of these: were told to leave
  // ---- The last departure that was given up.
  std::vector<NodeId> given_up_;
  std::string given_up_reason_;
  Instant gathers_until_;
  int spares_ = 0;  // as last known
  int min_nodes_ = 1;
  // A coordinator that has taken over does not know yet whether ranks save their state: it stops
  // none before this.
  Instant no_stop_before_ = Instant::min();
  std::vector<std::uint64_t> observers_;
  std::string announced_;  // the last line of announce_once()

  // ---- The round.
  std::uint64_t round_ = 0;
  int num_members_ = 0;
  std::map<NodeId, Node> nodes_;
  struct Tally {
    std::size_t replied = 0;  // to the current order
    std::size_t reached = 0;  // their ranks have stopped, or have ended
    std::size_t ended = 0;
    std::size_t waiting = 0;
  };
  Tally tally_;                          // of nodes_
  std::optional<Instant> first_report_;  // when a rank has reported a step

  // ---- The agreement.
  drain::Order::Kind sent_ = drain::Order::Kind::kAsk;
  std::uint64_t proposal_ = 0;
  std::int64_t step_ = drain::kNoStep;
  std::int64_t newest_ = drain::kNoStep;
  std::int64_t margin_ = 1;       // above the newest step
  bool is_incomplete_ = false;    // a node has left after the commit, before its ranks had exited
  std::optional<Instant> timer_;  // of the replies, or of the next question
  Instant asked_at_ = Instant::min();
};

}  // namespace elastic::core
