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
  kShared,      // none: the agents share a state
  kStored,      // as kStandalone, and it stores its state in a file
};

struct SimReport {
  std::vector<std::string> violations;  // empty: every promise was kept
  std::vector<std::string> trace;       // only if asked for
  std::uint64_t steps = 0;
  std::uint64_t rounds = 0;
  std::uint64_t crashes = 0;  // of the coordinator
  std::string end;            // how the job ended
};

SimReport simulate(SimMode mode, std::uint64_t seed, bool with_trace);
// A coordinator that stores its state crashes at random instants, and nothing else goes wrong but
// workers: no node may be declared lost, and no round may be waited for longer than kStartHold.
SimReport simulate_crash_points(std::uint64_t seed, bool with_trace);

}  // namespace elastic::test
