#pragma once

// Sessions between agents and a coordinator over a network that can delay, stall one way or both,
// cut connections, and lose them without a notice.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "core/rendezvous/rendezvous_events.h"
#include "core/session/node_reports.h"
#include "core/session/session_wire.h"
#include "sim/kernel/clock.h"

namespace elastic::test {

enum class Side { kAgent = 0, kServer = 1 };
inline Side other(Side side) { return side == Side::kAgent ? Side::kServer : Side::kAgent; }

class SimLink;

// For traces.
const char* name_of(const core::RendezvousEvent& event);
const char* name_of(const core::RendezvousAction& action);

// The path between one agent's machine and the coordinator's.
struct SimPath {
  bool is_blocked[2] = {false, false};  // by the side that sends
  Duration delay_min = std::chrono::microseconds(50);
  Duration delay_max = std::chrono::milliseconds(2);
  std::set<SimLink*> links;
  bool has_ended = false;  // the process of the agent

  bool is_open() const { return !is_blocked[0] && !is_blocked[1]; }
  // Delivers what was delayed.
  void unblock();
};

// One connection: ordered and reliable in each direction while it lives, as TCP is.
class SimLink : public std::enable_shared_from_this<SimLink> {
 public:
  struct Fin {};
  // Asks whether a coordinator listens, and its answer.
  struct Question {};
  struct Answer {};
  struct Hello {
    NodeId node;
    std::uint64_t term = 0;
    std::optional<session::SuccessionHello> succession = {};
  };
  struct HelloReply {
    std::uint64_t incarnation;
    Instant time;
    std::uint64_t term = 1;
  };
  struct Heartbeat {
    Instant sent;
  };
  struct HeartbeatReply {
    Instant sent;
    Instant time;
    Duration alone = {};
  };
  // The timings of the job, which replace those of the node.
  struct Timings {
    JobSettings settings;
  };
  // The coordinator ends although this job has not ended.
  struct Leaving {
    std::string reason;
  };
  using Message = std::variant<core::RendezvousEvent, core::RendezvousAction, Fin, Question, Answer,
                               Hello, HelloReply, Heartbeat, HeartbeatReply, Timings, Leaving,
                               session::Incumbent, core::NodeReport, drain::Order>;

  SimLink(SimClock* clock, Dice* dice, std::shared_ptr<SimPath> path);
  ~SimLink();
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;

  void send(Side from, Message message);
  // This side closes; the other is notified when the path allows.
  void close(Side from);
  // Both sides are notified, as by a reset on the path.
  void cut();
  // Nothing is delivered, and no side is notified.
  void vanish() { has_vanished_ = true; }
  // How long something this side sent has not been acknowledged: not delivered, or the
  // acknowledgement cannot come back.
  Duration unacknowledged(Side from) const;
  const SimPath& path() const { return *path_; }
  Duration longest_round_trip() const { return 2 * path_->delay_max; }
  bool is_closed(Side side) const { return is_closed_[static_cast<int>(side)]; }

  // Called on delivery, at each side.
  std::function<void(const Message&)> on_message[2];
  std::function<void()> on_closed[2];

 private:
  friend struct SimPath;
  void post(Side from, Message message);
  void deliver(Side from);

  SimClock* clock_;
  Dice* dice_;
  std::shared_ptr<SimPath> path_;  // shared with its agent, whom callbacks may outlive
  struct Pending {
    Message message;
    Instant sent;
    bool is_due = false;
  };
  std::deque<Pending> pending_[2];
  Instant last_due_[2];
  Instant unacknowledged_since_[2] = {Instant::max(), Instant::max()};
  bool is_closed_[2] = {false, false};
  bool has_vanished_ = false;
};

}  // namespace elastic::test
