// Runs the succession over a store, seed by seed. A failure prints the line that replays it with a
// trace.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sim/kept_world.h"
#include "sim/seeds.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::string_view, 6> kKeptScenes = {"start",     "lost",  "hand-over",
                                                         "partition", "alone", "faults"};

struct KeptSweep {
  std::uint64_t seeds = 0;
  std::uint64_t offices = 0;
  std::uint64_t in_force = 0;
  Duration longest{};
};

KeptSweep sweep_kept(KeptScene scene, std::uint64_t count) {
  const Seeds seeds = seeds_of(count);
  KeptSweep total;
  int failed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end && failed < 3; ++seed) {
    const KeptReport report = simulate_kept(scene, seed);
    ++total.seeds;
    total.offices += report.offices;
    total.in_force += report.in_force;
    total.longest = std::max(total.longest, report.recovery);
    if (report.violations.empty()) continue;
    ++failed;
    for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
    ADD_FAILURE() << "replay: ELASTIC_SIM_REPLAY=" << kKeptScenes[static_cast<std::size_t>(scene)]
                  << ":" << seed << " sim_tests --gtest_filter=KeptSim.Replay";
  }
  return total;
}

TEST(KeptSim, OneOfThoseThatStartTogetherCoordinates) {
  const KeptSweep total = sweep_kept(KeptScene::kStart, 300);
  EXPECT_EQ(total.offices, total.seeds);
  EXPECT_LT(total.longest, 500ms);
}
TEST(KeptSim, AnotherProcessContinuesTheJobOfALostOne) {
  const KeptSweep total = sweep_kept(KeptScene::kLost, 300);
  EXPECT_EQ(total.offices, 2 * total.seeds);
}
TEST(KeptSim, AHandOverTakesOneClaim) {
  const KeptSweep total = sweep_kept(KeptScene::kHandOver, 300);
  EXPECT_EQ(total.offices, 2 * total.seeds);
}
TEST(KeptSim, ACoordinatorThatAnswersInTheRecordKeepsItsOffice) {
  const KeptSweep total = sweep_kept(KeptScene::kPartition, 300);
  EXPECT_EQ(total.offices, total.seeds);
}
TEST(KeptSim, ACoordinatorWithoutTheStoreKeepsItsSessions) {
  const KeptSweep total = sweep_kept(KeptScene::kAlone, 300);
  EXPECT_EQ(total.offices, total.seeds);
}
TEST(KeptSim, FaultsBreakNoPromise) {
  const KeptSweep total = sweep_kept(KeptScene::kFaults, 1000);
  EXPECT_GT(total.offices, total.seeds);
  EXPECT_GT(total.in_force, 10 * total.seeds);
}

// ELASTIC_SIM_REPLAY=scene:seed
TEST(KeptSim, Replay) {
  const char* replay = std::getenv("ELASTIC_SIM_REPLAY");
  if (replay == nullptr) GTEST_SKIP() << "ELASTIC_SIM_REPLAY names no scene and seed";
  const std::string text = replay;
  const std::size_t colon = text.find(':');
  const auto scene = std::find(kKeptScenes.begin(), kKeptScenes.end(), text.substr(0, colon));
  if (scene == kKeptScenes.end()) GTEST_SKIP() << "a scene of another simulation";
  const KeptReport report = simulate_kept(static_cast<KeptScene>(scene - kKeptScenes.begin()),
                                          std::stoull(text.substr(colon + 1)), true);
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace elastic::test
