#pragma once

// The ranks of a round: those of its nodes, and of their workers. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "elastic/agent.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

// ---- Node ranks: survivors keep theirs, a replacement takes the freed rank, and the other ranks
// are assigned in natural order.

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

// ---- The ranks of the workers, from the round's members in the order of their node ranks.
//
// Nodes may differ in how many workers they run and in role. Global ranks run through the nodes in
// order; role ranks do the same among the nodes of one role, so roles interleave by node rank.

struct NodeMember {
  int local_world_size = 0;
  std::string role;
};

struct NodeRanks {
  int base_rank = 0;  // global rank of the node's local rank 0
  int world_size = 0;
  int base_role_rank = 0;
  int role_world_size = 0;

  bool operator==(const NodeRanks&) const = default;
};

// One entry for each member, at its node rank.
std::vector<NodeRanks> assign_ranks(const std::vector<NodeMember>& members);

// The assignments of one node's workers, by local rank.
std::vector<WorkerAssignment> worker_assignments(const NodeRanks& node, int local_world_size);

// What the workers of one member need to know of a round.
RoundInfo round_info(const RoundRecord& record, const NodeAssignment& own);

}  // namespace elastic::core
