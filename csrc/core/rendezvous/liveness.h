#pragma once

// Who has been heard of lately: turns silence and closed sessions into losses.
//
// Only the caller's own clock counts. A node is lost when nothing was heard of it for
// `node_timeout`, or when its session has been closed for `reconnect_grace` without resuming. Pure;
// heard() is O(log n).

#include <map>
#include <optional>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

class Liveness {
 public:
  struct Loss {
    NodeId node;
    bool by_close = false;
    Duration silence{};  // since it was last heard of

    bool operator==(const Loss&) const = default;
  };

  Liveness(Duration node_timeout, Duration reconnect_grace)
      : node_timeout_(node_timeout), reconnect_grace_(reconnect_grace) {}

  // The node lives; also makes it known, and takes a suspicion back.
  void record_activity(const NodeId& node, Instant now);
  // Its session was closed. It has reconnect_grace to resume, or `least_grace` if that is longer. A
  // second call does not prolong the grace.
  void session_closed(const NodeId& node, Instant now, Duration least_grace = {});
  // Nothing is expected of the node before `until`; then it is lost, unless it is heard.
  void await(const NodeId& node, Instant until);
  void forget(const NodeId& node);

  // The caller stood still for `gap`, and may have messages that it has not read. Above a quarter
  // of node_timeout the gap counts for nobody: returns true, and every deadline here is later by
  // it.
  bool add_gap(Duration gap);

  // The nodes that are lost by `now`, in the order of their ids. They are forgotten.
  std::vector<Loss> take_lost(Instant now);
  // No node is lost before this; it may be early. nullopt: nobody is watched.
  std::optional<Instant> next_deadline() const;

  // How long the node has not been heard of; zero if it is not known.
  Duration silence(const NodeId& node, Instant now) const;

 private:
  struct LastSeen {
    Instant last;
    Instant suspect_until = Instant::max();  // max: not suspected
  };
  Instant deadline(const LastSeen& sight) const;

  // Constant after construction.
  Duration node_timeout_;
  Duration reconnect_grace_;

  std::map<NodeId, LastSeen> last_seen_;
  // A lower bound of all deadlines: hearing moves a deadline only later, so that a beat never has
  // to look at anybody else.
  Instant check_at_ = Instant::max();
};

}  // namespace elastic::core
