#pragma once

#include <algorithm>
#include <optional>

#include "elastic/time.h"

namespace elastic::core {

// How a node that takes part in rounds through a RendezvousClient leaves: at once, or after the
// other nodes, which may still read the store of the last round in its process.
class LeaveOrder {
 public:
  struct Node {
    bool is_job_over = false;   // the job has a result
    bool has_workers = false;   // of the last round, and has not reported them gone
    bool serves_store = false;  // of the last round
    int nodes = 1;              // of the last round
  };

  // The node leaves, and its session ends, within `limit`. True: first report the workers gone, and
  // wait; RoundOver is only sent to members.
  bool begin(const Node& node, Duration limit, Instant now) {
    const bool waits = node.is_job_over && node.has_workers && node.serves_store && node.nodes > 1;
    end_ = add_saturating(now, limit);
    leave_at_ = waits ? add_saturating(now, limit / 2) : now;
    return waits;
  }
  bool has_begun() const { return end_.has_value(); }
  // The workers of all nodes are gone.
  void round_over(Instant now) {
    if (leave_at_) leave_at_ = now;
  }
  // When to call tick().
  std::optional<Instant> next_deadline() const { return leave_at_; }
  // Once, when the node leaves now: how much time its session has to end.
  std::optional<Duration> tick(Instant now) {
    if (!leave_at_ || now < *leave_at_) return std::nullopt;
    leave_at_.reset();
    return std::max(*end_ - now, Duration::zero());
  }

 private:
  std::optional<Instant> end_;
  std::optional<Instant> leave_at_;
};

}  // namespace elastic::core
