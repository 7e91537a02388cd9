#include "core/hang/idle_workers.h"

#include <algorithm>
#include <utility>

namespace elastic::core {
namespace {

template <typename Value>
Value distance(Value one, Value other) {
  return one > other ? one - other : other - one;
}

// The sums become smaller when a child ends, which is an event like any other.
bool is_idle(const WorkerEvidence& before, const WorkerEvidence& after, Duration elapsed) {
  const int polling = std::clamp(after.polling_threads, 0, kPollingThreadsMax);
  return !before.is_at_work && !after.is_at_work && before.step == after.step &&
         before.collectives == after.collectives &&
         distance(before.cpu, after.cpu) <= elapsed / kIdleCpuShare * (1 + polling) &&
         distance(before.io_bytes, after.io_bytes) <= kIdleBytes;
}

}  // namespace

std::vector<std::int32_t> IdleWorkers::look(const std::vector<WorkerEvidence>& workers,
                                            Instant now) {
  const Duration elapsed = now - std::exchange(looked_, now);
  const bool is_comparable = elapsed >= kIdleIntervalMin && elapsed <= kIdleIntervalMax;
  std::map<std::int32_t, WorkerEvidence> seen;
  std::vector<std::int32_t> idle;
  for (const WorkerEvidence& worker : workers) {
    seen[worker.rank] = worker;
    const auto before = last_.find(worker.rank);
    if (!is_comparable || before == last_.end()) continue;
    if (is_idle(before->second, worker, elapsed)) idle.push_back(worker.rank);
  }
  last_ = std::move(seen);
  return idle;
}

}  // namespace elastic::core
