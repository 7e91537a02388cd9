#pragma once

// Detects lost nodes from silence and closed sessions.
//
// Only the caller's own clock counts. A node is lost when it sent nothing for
// `node_timeout`, or when its session has been closed for `reconnect_grace` without resuming. If
// many sessions are closed at once, they have one cause, and all of these nodes reconnect to one
// loop: the grace grows by kResumeTime for each of them. Pure; record_activity() is O(log n).

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

// For the handshakes of one session, with encryption, on the coordinator's loop.
inline constexpr Duration kResumeTime = std::chrono::milliseconds(2);

class Liveness {
 public:
  struct Loss {
    NodeId node;
    bool by_close = false;
    Duration silence{};  // since its last message
    Duration grace{};    // by_close: the time that it had to resume

    bool operator==(const Loss&) const = default;
  };

  Liveness(Duration node_timeout, Duration reconnect_grace)
      : node_timeout_(node_timeout), reconnect_grace_(reconnect_grace) {}

  // The node is alive: adds it, or clears the suspicion.
  void record_activity(const NodeId& node, Instant now);
  // Its session was closed. It has reconnect_grace to resume, or `least_grace` if that is longer. A
  // second call does not prolong the grace.
  void session_closed(const NodeId& node, Instant now, Duration least_grace = {});
  // The node is lost at `until`, unless record_activity() is called before.
  void await(const NodeId& node, Instant until);
  void forget(const NodeId& node);

  // The caller was suspended for `gap`, and may have messages that it has not read: it is charged
  // to no node, and moves every deadline.
  void add_gap(Duration gap);

  // The nodes that are lost by `now`, in the order of their ids. They are forgotten.
  std::vector<Loss> take_lost(Instant now);
  // No node is lost before this; it may be early. nullopt: no node is watched.
  std::optional<Instant> next_deadline() const;

  // The time since the last message of the node; zero if it is not known.
  Duration silence(const NodeId& node, Instant now) const;

 private:
  struct LastSeen {
    Instant last;
    Instant suspect_until = Instant::max();  // max: not suspected
    Duration grace{};                        // until then, since its session was closed
    bool is_closed = false;                  // suspected because its session was closed
  };
  // Because of the other sessions that are closed.
  Duration added_grace() const { return kResumeTime * (most_closed_ - 1); }
  Instant suspicion_ends(const LastSeen& entry) const;
  Instant deadline(const LastSeen& entry) const;
  void left_suspicion(const LastSeen& entry);

  // Constant after construction.
  Duration node_timeout_;
  Duration reconnect_grace_;

  std::map<NodeId, LastSeen> last_seen_;
  int num_closed_ = 0;   // nodes that are suspected because their sessions were closed
  int most_closed_ = 0;  // at once, since there were none: deadlines only move later
  // A lower bound of all deadlines: activity only moves a deadline later, so a heartbeat does not
  // need to visit other nodes.
  Instant check_at_ = Instant::max();
};

}  // namespace elastic::core
