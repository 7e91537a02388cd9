#pragma once

// What nodes hold of the snapshots of their ranks, in a join.

#include <cstdint>
#include <vector>

namespace elastic {

// The state of a rank after a step, which its node holds and a further round can continue from.
// States of one step that were saved in different rounds are not of one training: a round may have
// begun again at an earlier step.
struct HeldState {
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::int64_t step = 0;
  std::uint32_t round = 0;  // in which it was saved, as in ELASTIC_ROUND
  std::uint32_t digest = 0;

  bool operator==(const HeldState&) const = default;
};

// What one node of a new round brings to it.
struct NodeHoldings {
  int base_rank = 0;
  int local_world_size = 0;
  const std::vector<HeldState>* held = nullptr;
};

}  // namespace elastic
