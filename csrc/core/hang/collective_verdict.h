#pragma once

// Which rank the others wait for in a collective operation of torch.distributed.
//
// Pure.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/hang/hang_types.h"
#include "core/hang/stack_text.h"

namespace elastic::core {

// What the workers of one node show of their process groups. Workers with the same state are
// joined. `wall_now`: nanoseconds since 1970. At most hang::kCollectivesMax; lines of a worker that
// cannot be read are skipped.
std::vector<hang::CollectiveState> collective_states(const std::vector<WorkerEvidence>& workers,
                                                     std::int64_t wall_now);

struct CollectiveVerdict {
  std::int32_t suspect = -1;         // the rank that the others wait for; -1: none, or several
  std::vector<std::int32_t> causes;  // the ranks that the others wait for; empty: none is
  std::string key;    // equal for two verdicts about the same waits; "": the states show nothing
  std::string place;  // of the suspect; "": unknown
  std::string text;   // one sentence; "": the states show nothing
  std::string blindness = {};  // one sentence: why nothing is seen of some ranks; "": all are seen
};

// Collects what all nodes show, one by one, and judges it.
class CollectiveJudge {
 public:
  CollectiveJudge();
  CollectiveJudge(CollectiveJudge&&) noexcept;
  CollectiveJudge& operator=(CollectiveJudge&&) noexcept;
  ~CollectiveJudge();

  void add(const hang::CollectiveState& state);
  // Once. `places`: of the ranks, for the text.
  CollectiveVerdict verdict(const std::vector<hang::StackGroup>& places);

 private:
  struct Evidence;

  std::unique_ptr<Evidence> evidence_;
};

// The same with everything at once.
CollectiveVerdict judge_collectives(const std::vector<hang::CollectiveState>& states,
                                    const std::vector<hang::StackGroup>& groups);

}  // namespace elastic::core
