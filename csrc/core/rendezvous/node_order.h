#pragma once

// Node ranks of a round: survivors keep theirs, a replacement takes the freed one, and what is left
// goes in natural order.

#include <string_view>
#include <vector>

#include "elastic/rendezvous_types.h"

namespace elastic::core {

// Compares as people count: runs of digits by their value, so that node2 comes before node10.
// Negative, zero or positive. Texts that count the same but differ ("a1", "a01") compare as bytes.
int compare_natural(std::string_view a, std::string_view b);

// What a node brings to the distribution of ranks.
struct RankRequest {
  NodeId id;
  std::string_view name;
  int held_rank = -1;       // in the round before this one; -1: it was no member
  int preferred_rank = -1;  // taken if nobody holds it
  int hint = -1;            // --node-rank
  std::string_view topology;
};

// The rank of each claim: dense, unique, and a function of the set of claims alone. REQUIRES: held
// ranks are unique.
std::vector<int> assign_node_ranks(const std::vector<RankRequest>& claims);

}  // namespace elastic::core
