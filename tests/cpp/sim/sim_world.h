#pragma once

// One job on a few machines, from one seed: first with faults, then healed, when it must come to an
// end within a bounded time.

#include <cstdint>
#include <string>
#include <vector>

namespace elastic::test {

enum class SimMode {
  kStandalone,  // a coordinator on a machine of its own
  kHosted,      // in the process of the first agent, and dying with it
  kStored,      // as kStandalone, and it stores its state in a file
  kGuest,       // in the process of an agent of another job
};

struct SimReport {
  std::vector<std::string> violations;  // empty: every promise was kept
  std::vector<std::string> trace;       // only if asked for
  std::uint64_t steps = 0;
  std::uint64_t rounds = 0;
  std::uint64_t crashes = 0;  // of the coordinator
  std::uint64_t leaves = 0;   // of a coordinator that other jobs still used
  std::string end;            // how the job ended
};

enum class SimTimings { kEqual, kPerNode };

SimReport simulate(SimMode mode, SimTimings timings, std::uint64_t seed, bool with_trace);
// A coordinator that stores its state crashes at random instants, and otherwise only workers
// fail: no node may be declared lost, and no round may be waited for longer than kStartHold.
// The timings differ between nodes.
SimReport simulate_crash_points(std::uint64_t seed, bool with_trace);
// Two jobs at one endpoint, whose coordinator is in an agent of the first job and ends with it:
// when that agent crashes, and when its own job has ended.
SimReport simulate_two_jobs(std::uint64_t seed, bool with_trace);

}  // namespace elastic::test
