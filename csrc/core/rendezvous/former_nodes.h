#pragma once

// The nodes that have left a job or were lost, oldest first. Pure; find() is O(log n), since after
// the loss of many nodes each of them is looked up.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "core/rendezvous/round_state.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

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
