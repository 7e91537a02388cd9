#pragma once

// Node ranks of a round: survivors keep theirs, a replacement takes the freed rank, and the other
// ranks are assigned in natural order.

#include <string_view>
#include <vector>

#include "elastic/rendezvous_types.h"

namespace elastic::core {

// Natural order: compares runs of digits by their value, so that node2 comes before node10.
// Negative, zero or positive. Texts that are equal in this order but differ ("a1", "a01") compare
// as bytes.
int compare_natural(std::string_view a, std::string_view b);

// What decides about the rank of a node.
struct RankRequest {
  NodeId id;
  std::string_view name;
  int held_rank = -1;       // in the previous round; -1: not a member
  int preferred_rank = -1;  // used if no node holds it
  int hint = -1;            // --node-rank
  std::string_view topology;
};

// The rank of each request: dense, unique, and a function of the set of requests alone. REQUIRES:
// held ranks are unique.
std::vector<int> assign_node_ranks(const std::vector<RankRequest>& requests);

}  // namespace elastic::core
