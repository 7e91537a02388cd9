#pragma once

// A notice that has reached this node, as the signal of a scheduler: how long the node waits for a
// step at which ranks stop, and which exits of its workers are of the same signal.
//
// Pure. Not thread-safe. A part of AgentMachine, beside DrainMember, which has the step.

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/node_events.h"
#include "core/base/parts.h"
#include "core/drain/drain_types.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic::drain {

// The coordinator ends the job at the deadline of a drain. Without an answer of it this node
// leaves.
inline constexpr Duration kNoticeMargin = std::chrono::seconds(5);
// A scheduler may send the signal of a notice to the workers, too: within this time of each other.
inline constexpr Duration kNoticeEcho = std::chrono::seconds(1);
// If no step is agreed on in time, the coordinator keeps the node; the node then stops itself after
// this margin.
inline constexpr Duration kDepartureMargin = std::chrono::milliseconds(500);

// Nothing has come of the notice: the node stops.
struct GiveUp {
  std::string why;
};

class NodeNotice {
 public:
  using Event = std::variant<core::node_event::RoundBegan, core::node_event::WorkerEnded, Order,
                             core::PartTick>;
  using Out = std::vector<GiveUp>;
  void step(const Event& event, Instant now, Out* out) {
    std::visit([&](const auto& one) { on(one, now, out); }, event);
  }

  // `leaves_alone`: the job continues without this node.
  void give(int signal, bool leaves_alone, Instant now);
  // A step was requested, within `limit`. `is_idle`: no worker exists here.
  void wait(Duration limit, bool is_idle, Instant now);
  void end_wait();

  bool is_waiting() const { return until_.has_value(); }
  bool leaves_alone() const { return leaves_alone_; }
  // The signal of the notice has also ended a worker: before the notice was given, or after it. A
  // worker that ends so has not failed, and no step can be agreed on.
  bool has_ended_worker() const;
  bool is_of_notice(const WorkerExit& exit) const;
  // "signal 15 (SIGTERM) has also ended a worker, …". REQUIRES: give() was called
  std::string describe_echo() const;

  std::optional<Instant> next_deadline() const;
  // Why the node waits no longer; nullptr: it does, or it does not wait.
  const char* why_over(Instant now) const;

 private:
  void on(const core::node_event::RoundBegan&, Instant, Out*);
  void on(const core::node_event::WorkerEnded& event, Instant, Out*);
  void on(const Order& order, Instant, Out*) {
    if (!order.notice.departure) leaves_alone_ = false;  // the whole job stops at the step
  }
  void on(const core::PartTick&, Instant now, Out* out) {
    if (const char* const why = why_over(now)) out->push_back({why});
  }

  struct Signalled {
    int signal = 0;
    Instant at;
  };
  std::optional<Signalled> given_;        // the last notice
  std::optional<Signalled> last_killed_;  // the last worker of the round that a signal has killed
  bool leaves_alone_ = false;
  std::optional<Instant> until_;
  std::optional<Instant> idle_until_;  // the same, while no worker exists here
};

}  // namespace elastic::drain
