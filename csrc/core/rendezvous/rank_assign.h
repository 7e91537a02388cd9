#pragma once

// Ranks of a round, from its members in the order of their node ranks.
//
// Nodes may differ in how many workers they run and in role. Global ranks run through the nodes in
// order; role ranks do the same among the nodes of one role, so roles interleave by node rank.

#include <string>
#include <vector>

#include "elastic/agent.h"
#include "elastic/rendezvous_types.h"

namespace elastic::core {

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
