#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "elastic/agent.h"
#include "elastic/time.h"

namespace elastic::core {

// The way of this node's workers from the start of a round to its first step, and the steps that
// the round before had reported. Its owner is the agent's.
class RoundMarks {
 public:
  // A round that ended before its first step has lost none: the steps of the round before it count.
  void begin_round() {
    const std::int64_t before = newest_ >= 0 ? newest_ : previous_;
    *this = {};
    previous_ = before;
  }
  // A worker has opened its channel.
  void opened(Instant at) {
    if (!opened_) opened_ = at;
  }
  // A worker has ended, and this was the last step that it had reported; negative: none.
  void ended(std::int64_t last_step) { newest_ = std::max(newest_, last_step); }
  // A worker has reported its first step. nullopt: not the first one of the round on this node.
  // `store_used`, `store_filled`: when the first client had connected to the round's store, and
  // when the last key was added, if that store is here.
  std::optional<AgentFirstStep> reported(std::int64_t step, std::optional<Instant> store_used,
                                         std::optional<Instant> store_filled) {
    if (step < 0 || std::exchange(has_reported_, true)) return std::nullopt;
    AgentFirstStep first;
    first.step = step;
    first.opened = opened_;
    first.store_used = store_used;
    first.store_filled = store_filled;
    // Both are 0 or more; a worker may have written any of them.
    if (previous_ >= 0) first.lost_steps = previous_ < step ? 0 : previous_ - step;
    if (previous_ >= step && first.lost_steps < INT64_MAX) ++first.lost_steps;
    return first;
  }

 private:
  std::optional<Instant> opened_;
  bool has_reported_ = false;
  std::int64_t newest_ = -1;    // of the workers of this round that have ended
  std::int64_t previous_ = -1;  // of the last round with reports before this one
};

}  // namespace elastic::core
