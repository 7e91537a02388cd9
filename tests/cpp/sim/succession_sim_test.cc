// Runs whole jobs whose coordinator is lost, seed by seed. A failure prints the line that replays
// it with a trace.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "sim/seeds.h"
#include "sim/succession_world.h"

namespace elastic::test {
namespace {

struct Sweep {
  std::uint64_t seeds = 0;
  std::uint64_t elections = 0;
  std::uint64_t displaced = 0;
  Duration longest{};
};

Sweep sweep(SuccessionScene scene, std::uint64_t count) {
  const Seeds seeds = seeds_of(count);
  Sweep total;
  int failed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end && failed < 3; ++seed) {
    const SuccessionReport report = simulate_succession(scene, seed, {});
    ++total.seeds;
    total.elections += report.elections;
    total.displaced += report.displaced;
    total.longest = std::max(total.longest, report.recovery);
    if (report.violations.empty()) continue;
    ++failed;
    for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
    ADD_FAILURE() << "replay: ELASTIC_SIM_REPLAY="
                  << kSuccessionScenes[static_cast<std::size_t>(scene)] << ":" << seed
                  << " build/quick/tests/cpp/sim/sim_tests --gtest_filter=SuccessionSim.Replay";
  }
  return total;
}

TEST(SuccessionSim, SurvivorsGoOnWithoutTheLostHost) {
  const Sweep total = sweep(SuccessionScene::kHostLost, 50);
  EXPECT_GE(total.elections, total.seeds);
}
TEST(SuccessionSim, SurvivorsGoOnWithoutTheLostProcess) {
  const Sweep total = sweep(SuccessionScene::kProcessLost, 50);
  EXPECT_GE(total.elections, total.seeds);
}
TEST(SuccessionSim, TheWorkOfALostNodeThatIsDoneIsNotRepeated) {
  sweep(SuccessionScene::kDoneLost, 50);
}
TEST(SuccessionSim, TheLossOfASeparateCoordinatorEndsNoRound) {
  sweep(SuccessionScene::kStandaloneLost, 50);
}
TEST(SuccessionSim, ARestartedCoordinatorWithoutTheRegisterFormsNoRound) {
  sweep(SuccessionScene::kStandaloneAgain, 50);
}
TEST(SuccessionSim, HandingOverEndsNoRound) { sweep(SuccessionScene::kHandOver, 50); }
TEST(SuccessionSim, OnlyTheMajorityOfAPartitionGoesOn) { sweep(SuccessionScene::kPartition, 50); }
TEST(SuccessionSim, TwoOfFiveHostsMayBeLostAtOnce) { sweep(SuccessionScene::kTwoOfFive, 50); }
TEST(SuccessionSim, TwoNodesAndAWitnessSurviveAnyOneLoss) { sweep(SuccessionScene::kWitness, 50); }
TEST(SuccessionSim, TheNextJobOfAnIdHasAWitnessToo) { sweep(SuccessionScene::kSameId, 50); }
TEST(SuccessionSim, AnOverrideContinuesAJobWhoseMajorityIsLost) {
  sweep(SuccessionScene::kOverride, 100);
}
TEST(SuccessionSim, FaultsOfTwoNodesAndAWitnessBreakNoPromise) {
  const Sweep total = sweep(SuccessionScene::kWitnessFaults, 40);
  if (HasFailure() || total.seeds < kSeedsToJudge) return;
  EXPECT_GT(total.elections, total.seeds / 4);
}
TEST(SuccessionSim, AReplacedHostAndNewcomersJoinTheJobThatWentOn) {
  const Sweep total = sweep(SuccessionScene::kReturn, 60);
  if (HasFailure() || total.seeds < kSeedsToJudge) return;
  EXPECT_GT(total.displaced, total.seeds / 10);
}
TEST(SuccessionSim, FaultsBreakNoPromise) {
  const Sweep total = sweep(SuccessionScene::kFaults, 150);
  if (HasFailure() || total.seeds < kSeedsToJudge) return;
  EXPECT_GT(total.elections, total.seeds / 2);
}

// Deleting a rule of the service must be noticed.
bool is_noticed(ServiceRule rule, SuccessionScene scene, std::uint64_t seeds,
                std::uint64_t first = 1) {
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    if (simulate_succession(scene, seed, {.deleted = rule}).violations.empty()) continue;
    std::cout << "noticed by seed " << seed << "\n";
    return true;
  }
  return false;
}

TEST(SuccessionRules, DecisionsAreHeldUntilTheirRecordIsInForce) {
  EXPECT_TRUE(is_noticed(ServiceRule::kHoldDecisions, SuccessionScene::kPartition, 200) ||
              is_noticed(ServiceRule::kHoldDecisions, SuccessionScene::kFaults, 2000));
}
// About one of 20'000 seeds needs the rule; the first of these does.
TEST(SuccessionRules, ANodeCountsFromTheLastReplyOfACoordinatorWithAMajority) {
  EXPECT_TRUE(is_noticed(ServiceRule::kSayAlone, SuccessionScene::kFaults, 60'000, 25'933));
}
TEST(SuccessionRules, OfTwoJobsWithOneIdTheLaterOneDissolves) {
  EXPECT_TRUE(is_noticed(ServiceRule::kMeet, SuccessionScene::kReturn, 200));
}
TEST(SuccessionRules, NodesOfAReplicatedJobAreTurnedAway) {
  EXPECT_TRUE(is_noticed(ServiceRule::kRefuseOtherLineage, SuccessionScene::kStandaloneAgain, 200));
}

TEST(SuccessionRules, AVoterOfALineageThatWasReplacedNeverVotesInItAgain) {
  std::string noticed;
  std::uint64_t seed = 0;
  while (noticed.empty() && ++seed <= 10'000) {
    const auto report = simulate_succession(SuccessionScene::kOverride, seed,
                                            {.deleted = ServiceRule::kLeaveReplaced});
    if (!report.violations.empty()) noticed = report.violations.front();
  }
  EXPECT_EQ(noticed, "a decision of the replaced lineage is in force after the override") << seed;
}

TEST(SuccessionSim, Replay) {
  const char* which = std::getenv("ELASTIC_SIM_REPLAY");
  if (which == nullptr) GTEST_SKIP() << "set ELASTIC_SIM_REPLAY=<scene>:<seed> to see one run";
  const std::string text = which;
  const std::size_t colon = text.find(':');
  const auto scene =
      std::find(std::begin(kSuccessionScenes), std::end(kSuccessionScenes), text.substr(0, colon));
  ASSERT_NE(scene, std::end(kSuccessionScenes)) << "no such scene: " << text;
  const SuccessionReport report =
      simulate_succession(static_cast<SuccessionScene>(scene - std::begin(kSuccessionScenes)),
                          std::stoull(text.substr(colon + 1)), {.is_traced = true});
  for (const std::string& line : report.trace) std::cout << line << "\n";
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace elastic::test
