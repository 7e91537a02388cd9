#pragma once

// The way of this node's workers from the start of a round to its first step, and the steps that
// the round before had reported.
//
// Pure.

#include <cstdint>
#include <optional>

#include "elastic/agent.h"
#include "elastic/time.h"

namespace elastic::core {

class RoundMarks {
 public:
  void begin_round();
  // A worker has opened its channel.
  void opened(Instant at);
  // A worker has ended, and this was the last step that it had reported; negative: none.
  void ended(std::int64_t last_step);
  // A worker has reported its first step. nullopt: not the first one of the round on this node.
  // `store_used`, `store_filled`: when the first client had connected to the round's store, and
  // when the last key was added, if that store is here.
  std::optional<AgentFirstStep> reported(std::int64_t step, std::optional<Instant> store_used,
                                         std::optional<Instant> store_filled);

 private:
  std::optional<Instant> opened_;
  bool has_reported_ = false;
  std::int64_t newest_ = -1;    // of the workers of this round that have ended
  std::int64_t previous_ = -1;  // of the last round with reports before this one
};

}  // namespace elastic::core
