#pragma once

// Which step a new round continues from, given what its nodes hold; and what is said about it.
//
// Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/held_state.h"

namespace elastic::snapshot {

// The newest step that every rank of the round has saved on the node on which it runs again, with
// the same world size; -1: none. `nodes`: by node rank.
std::int64_t plan_step(const std::vector<NodeHoldings>& nodes, int world_size);

// What a node reports when a round begins for which it holds snapshots. `last`: the last step that
// its ranks had reported; -1: unknown. `base_rank`, `ranks`: its ranks in the round.
std::string describe_plan(std::int64_t step, std::int64_t last, const std::vector<HeldState>& held,
                          int world_size, int base_rank, int ranks);

}  // namespace elastic::snapshot
