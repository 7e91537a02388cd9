#include "core/agent/round_marks.h"

#include <algorithm>

namespace elastic::core {

// A round that ended before its first step has lost none: the steps of the round before it count.
void RoundMarks::begin_round() {
  if (newest_ >= 0) previous_ = newest_;
  newest_ = -1;
  opened_.reset();
  has_reported_ = false;
}

void RoundMarks::opened(Instant at) {
  if (!opened_) opened_ = at;
}

void RoundMarks::ended(std::int64_t last_step) { newest_ = std::max(newest_, last_step); }

std::optional<AgentFirstStep> RoundMarks::reported(std::int64_t step,
                                                   std::optional<Instant> store_used,
                                                   std::optional<Instant> store_filled) {
  if (has_reported_ || step < 0) return std::nullopt;
  has_reported_ = true;
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

}  // namespace elastic::core
