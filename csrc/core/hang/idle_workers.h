#pragma once

// Which workers of a node do nothing: between two looks they have used no CPU time, moved no data
// and entered no operation.
//
// Pure.

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/worker_evidence.h"
#include "elastic/time.h"

namespace elastic::core {

// The time between the two looks.
inline constexpr Duration kIdleIntervalMin = std::chrono::seconds(4);
inline constexpr Duration kIdleIntervalMax = std::chrono::seconds(90);
// What a worker that does nothing may use: threads of torch and of other libraries look around.
inline constexpr int kIdleCpuShare = 100;  // of one core: a hundredth
// Each may use as much again: a thread of gloo wakes up a hundred times a second, one for each
// process group.
inline constexpr int kPollingThreadsMax = 32;
inline constexpr std::uint64_t kIdleBytes = 4096;

class IdleWorkers {
 public:
  // The evidence of a look. Returns the ranks, sorted, that have done nothing since the last look;
  // none if that was too recent, or long ago.
  std::vector<std::int32_t> look(const std::vector<WorkerEvidence>& workers, Instant now);

 private:
  std::map<std::int32_t, WorkerEvidence> last_;
  Instant looked_;
};

}  // namespace elastic::core
