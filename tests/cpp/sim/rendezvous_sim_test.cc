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

#include "sim/seeds.h"
#include "sim/sim_world.h"

namespace elastic::test {
namespace {

constexpr std::pair<const char*, SimMode> kModes[] = {{"standalone", SimMode::kStandalone},
                                                      {"hosted", SimMode::kHosted},
                                                      {"stored", SimMode::kStored}};

// The runs that are more than a mode.
constexpr const char* kCrashPoints = "crash-points";
constexpr const char* kTwoJobs = "two-jobs";
constexpr const char* kTimingsSuffix = "+timings";

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
                << " build/quick/tests/cpp/sim/sim_tests --gtest_filter=RendezvousSim.Replay";
  return false;
}

// `name` is a mode, with kTimingsSuffix if timings differ between nodes, or one of the others.
SimReport run(const std::string& name, std::uint64_t seed, bool with_trace) {
  if (name == kCrashPoints) return simulate_crash_points(seed, with_trace);
  if (name == kTwoJobs) return simulate_two_jobs(seed, with_trace);
  const std::size_t suffix = name.find(kTimingsSuffix);
  const bool is_equal = suffix == std::string::npos;
  return simulate(mode_named(name.substr(0, suffix)),
                  is_equal ? SimTimings::kEqual : SimTimings::kPerNode, seed, with_trace);
}

struct Totals {
  std::uint64_t runs = 0;
  std::uint64_t rounds = 0;
  std::uint64_t crashes = 0;
  std::uint64_t leaves = 0;
};

Totals sweep(const std::string& name, std::uint64_t count) {
  const Seeds seeds = seeds_of(count);
  Totals totals;
  int failed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end && failed < 5; ++seed) {
    const SimReport report = run(name, seed, false);
    ++totals.runs;
    totals.rounds += report.rounds;
    totals.crashes += report.crashes;
    totals.leaves += report.leaves;
    if (!is_good(report, name, seed)) ++failed;
  }
  return totals;
}

void sweep_faults(const std::string& name, std::uint64_t count) {
  const Totals totals = sweep(name, count);
  if (testing::Test::HasFailure() || totals.runs < kSeedsToJudge) return;
  EXPECT_GT(totals.rounds, 2 * totals.runs) << "the faults leave the job time to form rounds";
}

TEST(RendezvousSim, KeepsItsInvariantsWithASeparateCoordinator) {
  sweep_faults("standalone", 1000);
}
TEST(RendezvousSim, KeepsItsInvariantsWithTheCoordinatorInAnAgent) { sweep_faults("hosted", 500); }

TEST(RendezvousSim, KeepsItsPromisesWithAStoredState) { sweep_faults("stored", 300); }

TEST(RendezvousSim, KeepsItsInvariantsIfTimingsDifferBetweenNodes) {
  for (const char* mode : {"standalone", "hosted", "stored"}) {
    sweep_faults(std::string(mode) + kTimingsSuffix, 100);
  }
}

TEST(RendezvousSim, KeepsTheInvariantsOfEachOfTwoJobsAtOneEndpoint) {
  const Totals totals = sweep(kTwoJobs, 150);
  if (HasFailure() || totals.runs < kSeedsToJudge) return;
  EXPECT_GT(totals.rounds, totals.runs);
  EXPECT_GT(totals.leaves, totals.runs / 2) << "hosts end while the other job runs";
}

TEST(RendezvousSim, LosesNoLiveNodeWhenTheCoordinatorContinuesFromAnOldState) {
  const Totals totals = sweep(kCrashPoints, 250);
  if (HasFailure() || totals.runs < kSeedsToJudge) return;
  EXPECT_GT(totals.crashes, 4 * totals.runs);
}

TEST(RendezvousSim, RegressionSeedsPass) {
  std::ifstream file(ELASTIC_SIM_SEEDS);
  int seeds = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string mode;
    std::uint64_t seed = 0;
    ASSERT_TRUE(words >> mode >> seed) << line;
    is_good(run(mode, seed, false), mode, seed);
    ++seeds;
  }
  EXPECT_GT(seeds, 0);
}

TEST(RendezvousSim, SameSeedGivesTheSameRun) {
  for (const char* name :
       {"standalone", "hosted", "stored", "stored+timings", kCrashPoints, kTwoJobs}) {
    const SimReport once = run(name, 7, true);
    EXPECT_EQ(once.trace, run(name, 7, true).trace) << name;
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
  const SimReport report = run(mode, seed, true);
  for (const std::string& line : report.trace) std::cout << line << "\n";
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace elastic::test
