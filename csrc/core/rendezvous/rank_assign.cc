// Theory of operation
//
// Node ranks are given in three passes, the last two in the natural order of the requests (hint,
// topology, name, id):
//   1. a node that held a rank below the new size keeps it (I3), and no two held the same;
//   2. a node gets its preferred rank if it is free: an evicted node that joins again, for example;
//   3. the others fill the free ranks from below, so that a replacement takes the freed rank.
// The order of arrival plays no part, so every machine that sees the same set gives the same ranks.
//
// The ranks of the workers: one pass over the nodes keeps a running sum of workers, over all and
// for each role. What the sums hold when a node is reached are its bases; what they hold at the end
// are the world sizes, which a second pass copies to every node.

#include "core/rendezvous/rank_assign.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>

namespace elastic::core {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The run of digits at the front of `text`, without its leading zeros; it is cut off `text`.
std::string_view take_number(std::string_view* text) {
  std::size_t end = 0;
  while (end < text->size() && is_digit((*text)[end])) ++end;
  std::string_view number = text->substr(0, end);
  text->remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

int compare_requests(const RankRequest& a, const RankRequest& b) {
  // A node without a hint comes after those with one: -1 becomes the largest unsigned number.
  const auto hint_a = static_cast<unsigned>(a.hint);
  const auto hint_b = static_cast<unsigned>(b.hint);
  if (hint_a != hint_b) return hint_a < hint_b ? -1 : 1;
  if (const int by = compare_natural(a.topology, b.topology); by != 0) return by;
  if (const int by = compare_natural(a.name, b.name); by != 0) return by;
  return a.id < b.id ? -1 : (b.id < a.id ? 1 : 0);
}

}  // namespace

int compare_natural(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view number_a = take_number(&a);
      const std::string_view number_b = take_number(&b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size() ? -1 : 1;
      if (const int by = number_a.compare(number_b); by != 0) return by;
      continue;
    }
    if (a.front() != b.front()) {
      return static_cast<unsigned char>(a.front()) < static_cast<unsigned char>(b.front()) ? -1 : 1;
    }
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty() ? -1 : 1;
  return whole_a.compare(whole_b);
}

std::vector<int> assign_node_ranks(const std::vector<RankRequest>& requests) {
  std::vector<int> ranks(requests.size(), -1);
  std::vector<bool> taken(requests.size(), false);
  const auto assign = [&](std::size_t index, int wanted) {
    const auto rank = static_cast<std::size_t>(wanted);
    if (wanted < 0 || rank >= requests.size() || taken[rank] || ranks[index] >= 0) return;
    ranks[index] = wanted;
    taken[rank] = true;
  };
  for (std::size_t index = 0; index < requests.size(); ++index) {
    assign(index, requests[index].held_rank);
  }
  // The comparison of names is most of the cost: only of those without a rank.
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < requests.size(); ++index) {
    if (ranks[index] < 0) order.push_back(index);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return compare_requests(requests[a], requests[b]) < 0;
  });
  for (const std::size_t index : order) assign(index, requests[index].preferred_rank);

  std::size_t next_free = 0;
  for (const std::size_t index : order) {
    if (ranks[index] >= 0) continue;
    while (taken[next_free]) ++next_free;
    ranks[index] = static_cast<int>(next_free++);
  }
  return ranks;
}

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
  info.resume = record.resume;
  info.workers = worker_assignments(
      {own.base_rank, record.world_size, own.base_role_rank, own.role_world_size},
      own.local_world_size);
  return info;
}

}  // namespace elastic::core
