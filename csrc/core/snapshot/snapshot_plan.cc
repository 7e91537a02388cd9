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

SavedStep save_of(const HeldState& one) { return {one.step, one.round}; }

// What a round has: of each rank, what the node holds on which it runs, and what others serve; and
// of what is replicated, how many nodes hold it.
struct Holdings {
  struct Replicas {
    std::size_t nodes = 0;
    bool is_served = false;  // by one of them
  };
  Holdings(const std::vector<NodeHoldings>& nodes, int world_size) : count(nodes.size()) {
    for (const NodeHoldings& node : nodes) {
      if (node.held == nullptr) continue;
      Saves replicated;
      for (const HeldState& one : *node.held) {
        if (one == kKeepsProcesses) keeps_processes = true;
        if (one.step < 0) continue;
        if (one.rank < 0) {
          refused.insert(one.step);
          continue;
        }
        if (one.is_replicated) {
          replicated.insert(save_of(one));
        } else {
          plain_rounds.insert(one.round);
        }
        const bool is_local =
            one.rank >= node.base_rank && one.rank < node.base_rank + node.local_world_size;
        const bool is_had = one.is_copy ? is_served(node) : is_local;
        if (one.world_size == world_size && is_had) of[one.rank].insert(save_of(one));
      }
      for (const SavedStep& save : replicated) {
        ++replicas[save].nodes;
        if (is_served(node)) replicas[save].is_served = true;
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
  // The newest that every node has or can get.
  std::optional<SavedStep> newest_replicated() const {
    for (auto one = replicas.rbegin(); one != replicas.rend(); ++one) {
      const bool is_everywhere = one->second.is_served || one->second.nodes == count;
      const bool is_usable =
          !refused.contains(one->first.step) && !plain_rounds.contains(one->first.round);
      if (is_everywhere && is_usable) return one->first;
    }
    return std::nullopt;
  }
  bool is_mixed() const {
    return std::any_of(replicas.begin(), replicas.end(),
                       [&](const auto& one) { return plain_rounds.contains(one.first.round); });
  }

  std::size_t count = 0;             // nodes
  std::map<std::int32_t, Saves> of;  // by rank
  std::map<SavedStep, Replicas> replicas;
  std::set<std::uint32_t> plain_rounds;
  std::set<std::int64_t> refused;  // steps
  bool keeps_processes = false;    // a node
};

ResumePoint point_of(const SavedStep& save, ResumeKind kind) {
  return {save.step, std::int64_t{save.round}, kind};
}

// The one of which the node gives the state to its ranks and to other nodes; null: it holds none.
const HeldState* replica_on(const NodeHoldings& node, const SavedStep& save) {
  const HeldState* copy = nullptr;
  if (node.held == nullptr) return nullptr;
  for (const HeldState& one : *node.held) {
    if (one.rank < 0 || !one.is_replicated || save_of(one) != save) continue;
    if (!one.is_copy) return &one;
    if (copy == nullptr) copy = &one;
  }
  return copy;
}

std::vector<HeldSource> replica_source(const std::vector<NodeHoldings>& nodes,
                                       const SavedStep& save, std::size_t node) {
  const auto source = [&](const HeldState& state, const std::string& address) {
    return std::vector<HeldSource>{{.rank = state.rank,
                                    .round = state.round,
                                    .address = address,
                                    .is_shared = true,
                                    .world_size = state.world_size}};
  };
  if (const HeldState* const own = replica_on(nodes[node], save)) {
    if (!own->is_copy) return source(*own, "");
    if (is_served(nodes[node])) return source(*own, *nodes[node].address);
  }
  // Not all from one node.
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const NodeHoldings& other = nodes[(node + i) % nodes.size()];
    const HeldState* const its = is_served(other) ? replica_on(other, save) : nullptr;
    if (its != nullptr) return source(*its, *other.address);
  }
  return {};
}

bool holds(const std::vector<HeldState>& held, int rank, int world_size, SavedStep save) {
  return std::any_of(held.begin(), held.end(), [&](const HeldState& one) {
    return one.rank == rank && !one.is_copy && fits(one, world_size) && save_of(one) == save;
  });
}

bool holds_any(const std::vector<HeldState>& held, int rank, int world_size) {
  return std::any_of(held.begin(), held.end(), [&](const HeldState& one) {
    return one.rank == rank && fits(one, world_size);
  });
}

std::string why_none(const ResumePoint& point, const std::vector<HeldState>& held, int world_size,
                     int base_rank, int ranks) {
  if (point.kind == ResumeKind::kMixed) {
    return "ranks have saved with and without replicated=True, which all must pass or none";
  }
  const bool is_replicated =
      std::any_of(held.begin(), held.end(), [](const HeldState& one) { return one.is_replicated; });
  if (is_replicated) return "a node cannot get the replicated state";
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
  return why;
}

std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

ResumePoint plan_resume(const std::vector<NodeHoldings>& nodes, int world_size) {
  const Holdings holdings(nodes, world_size);
  if (holdings.keeps_processes) return {};
  const auto own = holdings.newest(world_size);
  const auto replicated = holdings.newest_replicated();
  if (replicated && (!own || *replicated > *own)) {
    return point_of(*replicated, ResumeKind::kReplicated);
  }
  if (own) return point_of(*own, ResumeKind::kOwn);
  return {.kind = holdings.is_mixed() ? ResumeKind::kMixed : ResumeKind::kOwn};
}

std::int64_t newest_step(const std::vector<HeldState>& held, int world_size, int base_rank,
                         int ranks) {
  const auto newest = Holdings({{base_rank, ranks, &held}}, world_size).newest(base_rank, ranks);
  return newest ? newest->step : -1;
}

std::vector<HeldSource> plan_sources(const std::vector<NodeHoldings>& nodes, int world_size,
                                     const ResumePoint& point, std::size_t node) {
  if (point.step < 0 || node >= nodes.size()) return {};
  SavedStep save{point.step, static_cast<std::uint32_t>(point.round)};
  if (point.kind == ResumeKind::kReplicated) return replica_source(nodes, save, node);
  if (point.round < 0) {
    const auto newest = Holdings(nodes, world_size).newest(world_size);
    if (!newest || newest->step != point.step) return {};
    save = *newest;
  }
  std::vector<HeldSource> sources;
  const NodeHoldings& own = nodes[node];
  for (int rank = own.base_rank; rank < own.base_rank + own.local_world_size; ++rank) {
    if (own.held != nullptr && holds(*own.held, rank, world_size, save)) continue;
    const auto source = std::find_if(nodes.begin(), nodes.end(), [&](const NodeHoldings& one) {
      return one.held != nullptr && is_served(one) &&
             std::any_of(one.held->begin(), one.held->end(), [&](const HeldState& state) {
               return state.is_copy && state.rank == rank && fits(state, world_size) &&
                      save_of(state) == save;
             });
    });
    if (source != nodes.end()) sources.push_back({rank, save.round, *source->address});
  }
  return sources;
}

std::string describe_plan(const ResumePoint& point, std::int64_t last,
                          const std::vector<HeldState>& held, int world_size, int base_rank,
                          int ranks) {
  if (point.step >= 0) {
    std::string text = "continued at step " + std::to_string(point.step) + " from memory";
    if (last > point.step) text += ": " + counted(last - point.step, "step") + " lost";
    return text;
  }
  return "the snapshots in memory are not used (" +
         why_none(point, held, world_size, base_rank, ranks) +
         "): every rank restores its own checkpoint";
}

}  // namespace elastic::snapshot
