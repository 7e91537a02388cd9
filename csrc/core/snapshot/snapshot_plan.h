#pragma once

// Which step a new round continues from, given what its nodes hold; and what is said about it.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/held_state.h"

namespace elastic::snapshot {

// The newest step of which every rank of the round has a snapshot, with the same world size: on the
// node on which it runs again, or as a copy on another node of the round; -1: none. A step that a
// node could not get is left out. `nodes`: by node rank.
std::int64_t plan_step(const std::vector<NodeHoldings>& nodes, int world_size);

// The newest step of which a node holds a snapshot of each of its ranks; -1: none.
std::int64_t newest_step(const std::vector<HeldState>& held, int world_size, int base_rank,
                         int ranks);

// Where the node of this rank gets the snapshots of its ranks that it does not hold: one for each,
// or none if plan_step() is not `step`.
std::vector<HeldSource> plan_sources(const std::vector<NodeHoldings>& nodes, int world_size,
                                     std::int64_t step, std::size_t node);

// What a node reports when a round begins for which it holds snapshots. `last`: the last step that
// its ranks had reported; -1: unknown. `base_rank`, `ranks`: its ranks in the round.
std::string describe_plan(std::int64_t step, std::int64_t last, const std::vector<HeldState>& held,
                          int world_size, int base_rank, int ranks);

}  // namespace elastic::snapshot
