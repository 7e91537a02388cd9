#include "core/rendezvous/rank_assign.h"

#include <map>
#include <string_view>

// Theory of operation. One pass over the nodes keeps a running sum of workers, over all and for
// each role: what the sums hold when a node is reached are its bases. What they hold at the end are
// the world sizes, which a second pass copies to every node.

namespace elastic::core {

std::vector<NodeRanks> assign_ranks(const std::vector<NodeMember>& members) {
  std::vector<NodeRanks> nodes;
  nodes.reserve(members.size());
  std::map<std::string_view, int> role_sums;
  int sum = 0;
  for (const NodeMember& member : members) {
    int& role_sum = role_sums[member.role];
    nodes.push_back({.base_rank = sum, .base_role_rank = role_sum});
    sum += member.local_world_size;
    role_sum += member.local_world_size;
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    nodes[i].world_size = sum;
    nodes[i].role_world_size = role_sums[members[i].role];
  }
  return nodes;
}

std::vector<WorkerAssignment> worker_assignments(const NodeRanks& node, int local_world_size) {
  std::vector<WorkerAssignment> workers;
  workers.reserve(static_cast<std::size_t>(local_world_size));
  for (int local_rank = 0; local_rank < local_world_size; ++local_rank) {
    workers.push_back({.local_rank = local_rank,
                       .rank = node.base_rank + local_rank,
                       .role_rank = node.base_role_rank + local_rank,
                       .world_size = node.world_size,
                       .role_world_size = node.role_world_size});
  }
  return workers;
}

RoundInfo round_info(const RoundRecord& record, const NodeAssignment& own) {
  RoundInfo info;
  info.round = record.round;
  info.generation = record.generation;
  info.restart_count = record.restarts;
  info.membership_changes = record.membership_changes;
  info.group_rank = own.group_rank;
  info.group_world_size = record.nodes;
  info.master_addr = record.master_addr;
  info.master_port = record.master_port;
  info.workers = worker_assignments(
      {own.base_rank, record.world_size, own.base_role_rank, own.role_world_size},
      own.local_world_size);
  return info;
}

}  // namespace elastic::core
