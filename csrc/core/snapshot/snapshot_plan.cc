#include "core/snapshot/snapshot_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace elastic::snapshot {
namespace {

// Two at most of a rank on its own node, unless a node reports more.
using Saves = std::set<SavedStep>;

bool fits(const HeldState& one, int world_size) {
  return one.world_size == world_size && one.step >= 0;
}

bool is_served(const NodeHoldings& node) {
  return node.address != nullptr && !node.address->empty();
}

// What a round has: of each rank, what the node holds on which it runs, and what others serve.
struct Holdings {
  Holdings(const std::vector<NodeHoldings>& nodes, int world_size) {
    for (const NodeHoldings& node : nodes) {
      if (node.held == nullptr) continue;
      for (const HeldState& one : *node.held) {
        if (!fits(one, world_size)) continue;
        const SavedStep save{one.step, one.round};
        const bool is_local =
            one.rank >= node.base_rank && one.rank < node.base_rank + node.local_world_size;
        if (one.rank < 0) {
          refused.insert(one.step);
        } else if (one.is_copy ? is_served(node) : is_local) {
          of[one.rank].insert(save);
        }
      }
    }
  }
  // The newest that all ranks have.
  std::optional<SavedStep> newest(int world_size) const { return newest(0, world_size); }
  std::optional<SavedStep> newest(int base_rank, int ranks) const {
    Saves common;
    for (int rank = base_rank; rank < base_rank + ranks; ++rank) {
      const auto found = of.find(rank);
      if (found == of.end()) return std::nullopt;
      if (rank == base_rank) common = found->second;
      std::erase_if(common, [&](const SavedStep& one) { return !found->second.contains(one); });
    }
    std::erase_if(common, [&](const SavedStep& one) { return refused.contains(one.step); });
    return common.empty() ? std::nullopt : std::optional(*common.rbegin());
  }

  std::map<std::int32_t, Saves> of;  // by rank
  std::set<std::int64_t> refused;    // steps
};

bool holds(const std::vector<HeldState>& held, int rank, int world_size, SavedStep save) {
  return std::any_of(held.begin(), held.end(), [&](const HeldState& one) {
    return one.rank == rank && !one.is_copy && fits(one, world_size) &&
           SavedStep{one.step, one.round} == save;
  });
}

bool holds_any(const std::vector<HeldState>& held, int rank, int world_size) {
  return std::any_of(held.begin(), held.end(), [&](const HeldState& one) {
    return one.rank == rank && fits(one, world_size);
  });
}

std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

std::int64_t plan_step(const std::vector<NodeHoldings>& nodes, int world_size) {
  const auto newest = Holdings(nodes, world_size).newest(world_size);
  return newest ? newest->step : -1;
}

std::int64_t newest_step(const std::vector<HeldState>& held, int world_size, int base_rank,
                         int ranks) {
  const auto newest = Holdings({{base_rank, ranks, &held}}, world_size).newest(base_rank, ranks);
  return newest ? newest->step : -1;
}

std::vector<HeldSource> plan_sources(const std::vector<NodeHoldings>& nodes, int world_size,
                                     std::int64_t step, std::size_t node) {
  const auto newest = Holdings(nodes, world_size).newest(world_size);
  if (!newest || newest->step != step || node >= nodes.size()) return {};
  std::vector<HeldSource> sources;
  const NodeHoldings& own = nodes[node];
  for (int rank = own.base_rank; rank < own.base_rank + own.local_world_size; ++rank) {
    if (own.held != nullptr && holds(*own.held, rank, world_size, *newest)) continue;
    const auto source = std::find_if(nodes.begin(), nodes.end(), [&](const NodeHoldings& one) {
      return one.held != nullptr && is_served(one) &&
             std::any_of(one.held->begin(), one.held->end(), [&](const HeldState& state) {
               return state.is_copy && state.rank == rank && fits(state, world_size) &&
                      SavedStep{state.step, state.round} == *newest;
             });
    });
    if (source != nodes.end()) sources.push_back({rank, newest->round, *source->address});
  }
  return sources;
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
    if (one.world_size == world_size || one.rank < 0) continue;
    why = "the world size has changed from " + std::to_string(one.world_size) + " to " +
          std::to_string(world_size);
  }
  for (int rank = base_rank; rank < base_rank + ranks; ++rank) {
    if (holds_any(held, rank, world_size) || held.front().world_size != world_size) continue;
    why = "rank " + std::to_string(rank) + " has none on this node";
    break;
  }
  return "the snapshots in memory are not used (" + why +
         "): every rank restores its own checkpoint";
}

}  // namespace elastic::snapshot
