#include "core/snapshot/snapshot_plan.h"

#include <algorithm>
#include <set>
#include <utility>

namespace elastic::snapshot {
namespace {

using Save = std::pair<std::int64_t, std::uint32_t>;  // the step, and the round of the save

// Of one rank; two at most, unless a node reports more.
std::set<Save> saves_of(const std::vector<HeldState>& held, int rank, int world_size) {
  std::set<Save> saves;
  for (const HeldState& one : held) {
    const bool fits = one.rank == rank && one.world_size == world_size && one.step >= 0;
    if (fits) saves.insert({one.step, one.round});
  }
  return saves;
}

std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

std::int64_t plan_step(const std::vector<NodeHoldings>& nodes, int world_size) {
  std::set<Save> common;
  bool is_first = true;
  for (const NodeHoldings& node : nodes) {
    if (node.held == nullptr || node.held->empty()) return -1;
    for (int i = 0; i < node.local_world_size; ++i) {
      std::set<Save> saves = saves_of(*node.held, node.base_rank + i, world_size);
      if (!is_first) std::erase_if(saves, [&](const Save& one) { return !common.contains(one); });
      if (saves.empty()) return -1;
      common = std::move(saves);
      is_first = false;
    }
  }
  return common.empty() ? -1 : common.rbegin()->first;
}

std::string describe_plan(std::int64_t step, std::int64_t last, const std::vector<HeldState>& held,
                          int world_size, int base_rank, int ranks) {
  if (step >= 0) {
    std::string text = "continued at step " + std::to_string(step) + " from memory";
    if (last > step) text += ": " + counted(last - step, "step") + " lost";
    return text;
  }
  std::string why = "no step is complete in memory on every rank";
  for (const HeldState& one : held) {
    if (one.world_size == world_size) continue;
    why = "the world size has changed from " + std::to_string(one.world_size) + " to " +
          std::to_string(world_size);
  }
  for (int rank = base_rank; rank < base_rank + ranks; ++rank) {
    if (!saves_of(held, rank, world_size).empty() || held.front().world_size != world_size)
      continue;
    why = "rank " + std::to_string(rank) + " has none on this node";
    break;
  }
  return "the snapshots in memory are not used (" + why +
         "): every rank restores its own checkpoint";
}

}  // namespace elastic::snapshot
