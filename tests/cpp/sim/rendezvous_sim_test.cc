// Runs the job's machine with model agents under faults, seed by seed. A failure prints the line
// that replays it with a trace. Seeds that found a fault are in seeds.txt and run for ever.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_world.h"

namespace elastic::test {
namespace {

constexpr std::pair<const char*, SimMode> kModes[] = {{"standalone", SimMode::kStandalone},
                                                      {"hosted", SimMode::kHosted},
                                                      {"shared", SimMode::kShared},
                                                      {"stored", SimMode::kStored}};

constexpr const char* kCrashPoints = "crash-points";

const char* name_of(SimMode mode) { return kModes[static_cast<int>(mode)].first; }

SimMode mode_named(const std::string& name) {
  for (const auto& [known, mode] : kModes) {
    if (name == known) return mode;
  }
  ADD_FAILURE() << "no such mode: " << name;
  return SimMode::kStandalone;
}

bool is_good(const SimReport& report, const std::string& name, std::uint64_t seed) {
  if (report.violations.empty()) return true;
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
  ADD_FAILURE() << "replay: ELASTIC_SIM_REPLAY=" << name << ":" << seed
                << " build/dev/tests/cpp/sim/rendezvous_sim_test --gtest_filter=*Replay";
  return false;
}

bool run_seed(SimMode mode, std::uint64_t seed, std::uint64_t* rounds) {
  const SimReport report = simulate(mode, seed, false);
  *rounds += report.rounds;
  return is_good(report, name_of(mode), seed);
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

// A sweep of other seeds: ELASTIC_SIM_FIRST=… ELASTIC_SIM_COUNT=…
void sweep(SimMode mode, std::uint64_t count) {
  const std::uint64_t first = number_from("ELASTIC_SIM_FIRST", 1);
  count = number_from("ELASTIC_SIM_COUNT", count);
  std::uint64_t rounds = 0;
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + count && failed < 5; ++seed) {
    if (!run_seed(mode, seed, &rounds)) ++failed;
  }
  if (failed == 0) {
    EXPECT_GT(rounds, 2 * count) << "the faults leave the job time to form rounds";
  }
}

TEST(RendezvousSim, KeepsItsInvariantsWithASeparateCoordinator) {
  sweep(SimMode::kStandalone, 1000);
}
TEST(RendezvousSim, KeepsItsInvariantsWithTheCoordinatorInAnAgent) { sweep(SimMode::kHosted, 500); }
TEST(RendezvousSim, KeepsItsInvariantsOverASharedState) { sweep(SimMode::kShared, 150); }

TEST(RendezvousSim, KeepsItsPromisesWithAStoredState) { sweep(SimMode::kStored, 300); }

TEST(RendezvousSim, LosesNoLiveNodeWhenTheCoordinatorContinuesFromAnOldState) {
  const std::uint64_t first = number_from("ELASTIC_SIM_FIRST", 1);
  const std::uint64_t count = number_from("ELASTIC_SIM_COUNT", 250);
  std::uint64_t crashes = 0;
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + count && failed < 5; ++seed) {
    const SimReport report = simulate_crash_points(seed, false);
    crashes += report.crashes;
    if (!is_good(report, kCrashPoints, seed)) ++failed;
  }
  if (failed == 0) {
    EXPECT_GT(crashes, 4 * count);
  }
}

TEST(RendezvousSim, RegressionSeedsPass) {
  std::ifstream file(ELASTIC_SIM_SEEDS);
  std::uint64_t rounds = 0;
  int seeds = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string mode;
    std::uint64_t seed = 0;
    ASSERT_TRUE(words >> mode >> seed) << line;
    run_seed(mode_named(mode), seed, &rounds);
    ++seeds;
  }
  EXPECT_GT(seeds, 0);
}

TEST(RendezvousSim, SameSeedGivesTheSameRun) {
  for (const auto& [name, mode] : kModes) {
    const SimReport once = simulate(mode, 7, true);
    EXPECT_EQ(once.trace, simulate(mode, 7, true).trace) << name;
    EXPECT_FALSE(once.trace.empty());
  }
}

TEST(RendezvousSim, Replay) {
  const char* which = std::getenv("ELASTIC_SIM_REPLAY");
  if (which == nullptr) GTEST_SKIP() << "set ELASTIC_SIM_REPLAY=<mode>:<seed> to see one run";
  const std::string text = which;
  const std::size_t colon = text.find(':');
  const std::string mode = text.substr(0, colon);
  const std::uint64_t seed = std::stoull(text.substr(colon + 1));
  const SimReport report = mode == kCrashPoints ? simulate_crash_points(seed, true)
                                                : simulate(mode_named(mode), seed, true);
  for (const std::string& line : report.trace) std::cout << line << "\n";
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace elastic::test
