// Runs whole jobs whose coordinator is lost, seed by seed. A failure prints the line that replays
// it with a trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sim/kernel/seeds.h"
#include "sim/succession_world.h"

namespace elastic::test {
namespace {

constexpr Simulation kSuccession = {
    "SuccessionSim", [](const std::string& scene, std::uint64_t seed, bool is_traced) {
      return simulate_succession(scene, seed, is_traced);
    }};

TEST(SuccessionSim, SurvivorsGoOnWithoutTheLostHost) {
  const Totals total = sweep(kSuccession, "host-lost", 50);
  EXPECT_GE(total["elections"], total.seeds);
}
TEST(SuccessionSim, SurvivorsGoOnWithoutTheLostProcess) {
  const Totals total = sweep(kSuccession, "process-lost", 50);
  EXPECT_GE(total["elections"], total.seeds);
}
TEST(SuccessionSim, TheWorkOfALostNodeThatIsDoneIsNotRepeated) {
  sweep(kSuccession, "done-lost", 50);
}
TEST(SuccessionSim, TheLossOfASeparateCoordinatorEndsNoRound) {
  sweep(kSuccession, "standalone-lost", 50);
}
TEST(SuccessionSim, ARestartedCoordinatorWithoutTheRegisterFormsNoRound) {
  sweep(kSuccession, "standalone-again", 50);
  sweep(kSuccession, "standalone-first", 20);
}
TEST(SuccessionSim, NodesThatAreLostOneAfterTheOtherEndNoJob) {
  sweep(kSuccession, "one-by-one", 40);
  sweep(kSuccession, "standalone-few", 40);
}
TEST(SuccessionSim, TheNextJobOfAnIdBeginsAtACoordinatorThatLostTheFormerOne) {
  sweep(kSuccession, "standalone-next", 40);
}
TEST(SuccessionSim, HandingOverEndsNoRound) { sweep(kSuccession, "hand-over", 50); }
TEST(SuccessionSim, AKillDuringAHandOverLeavesOneCoordinator) {
  const Totals total = sweep(kSuccession, "hand-over-killed", 80);
  EXPECT_GE(total["elections"], total.seeds);
}
TEST(SuccessionSim, NodesJoinWhereEveryRankWaitsWhoeverCoordinates) {
  const Totals total = sweep(kSuccession, "growth", 80);
  if (total.can_be_judged()) EXPECT_GT(total["grown at a step"], total.seeds / 2);
  sweep(kSuccession, "growth-faults", 80);
  sweep(kSuccession, "witness-growth", 60);
  sweep(kSuccession, "growth-lost", 60);
}
TEST(SuccessionSim, OnlyTheMajorityOfAPartitionGoesOn) { sweep(kSuccession, "partition", 50); }
TEST(SuccessionSim, TheMinorityOfAPartitionGivesUpAfterStoreGrace) {
  sweep(kSuccession, "minority", 20);
}
TEST(SuccessionSim, ALeaveWaitsForAMajority) { sweep(kSuccession, "leave", 20); }
TEST(SuccessionSim, NodesThatLeaveTogetherTakeNoMajorityWithThem) {
  sweep(kSuccession, "leave-together", 80);
}
TEST(SuccessionSim, TwoOfFiveHostsMayBeLostAtOnce) { sweep(kSuccession, "two-of-five", 50); }
TEST(SuccessionSim, TwoNodesAndAWitnessSurviveAnyOneLoss) { sweep(kSuccession, "witness", 50); }
TEST(SuccessionSim, TheNextJobOfAnIdHasAWitnessToo) { sweep(kSuccession, "same-id", 50); }
TEST(SuccessionSim, ANodeEndsWhenTheMajorityOfTheVotersIsLost) {
  sweep(kSuccession, "majority-lost", 100);
}
TEST(SuccessionSim, FaultsOfTwoNodesAndAWitnessBreakNoPromise) {
  const Totals total = sweep(kSuccession, "witness-faults", 40);
  if (total.can_be_judged()) EXPECT_GT(total["elections"], total.seeds / 4);
}
TEST(SuccessionSim, AReplacedHostAndNewcomersJoinTheJobThatWentOn) {
  const Totals total = sweep(kSuccession, "return", 60);
  if (total.can_be_judged()) EXPECT_GT(total["displaced"], total.seeds / 10);
  const Totals second = sweep(kSuccession, "second-job", 20);
  EXPECT_EQ(second["displaced"], second.seeds);
}
TEST(SuccessionSim, FaultsBreakNoPromise) {
  const Totals total = sweep(kSuccession, "faults", 150);
  if (total.can_be_judged()) EXPECT_GT(total["elections"], total.seeds / 2);
}
TEST(SuccessionSim, OneSeedIsOneRun) { expect_same_run(kSuccession, "faults"); }
TEST(SuccessionSim, Replay) { replay(kSuccession); }

// Deleting a rule of the service must be noticed. Each scene leads straight to the case that the
// rule is for; the delays, which the seed draws, break the promise in nearly every run.
void expect_noticed(ServiceRule rule, const char* scene, const char* violation) {
  int noticed = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
    EXPECT_THAT(simulate_succession(scene, seed, false).violations, testing::IsEmpty()) << seed;
    const SimReport report = simulate_succession(scene, seed, false, rule);
    if (report.violations.empty()) continue;
    EXPECT_THAT(report.violations.front(), testing::HasSubstr(violation)) << seed;
    ++noticed;
  }
  EXPECT_GE(noticed, 2);
}

TEST(SuccessionRules, DecisionsAreHeldUntilTheirRecordIsInForce) {
  expect_noticed(ServiceRule::kHoldDecisions, "partition", "I5: two rounds have the number 2");
}
TEST(SuccessionRules, ANodeCountsFromTheLastReplyOfACoordinatorWithAMajority) {
  expect_noticed(ServiceRule::kSayAlone, "minority", "R5: node1 works on");
}
TEST(SuccessionRules, ALeaveIsAcknowledgedWhenItIsRecorded) {
  expect_noticed(ServiceRule::kRecordLeaves, "leave", "R6: a leave was acknowledged");
}
TEST(SuccessionRules, OfTwoJobsWithOneIdTheLaterOneDissolves) {
  expect_noticed(ServiceRule::kMeet, "second-job", "R8: the replaced host");
}
TEST(SuccessionRules, NodesOfAReplicatedJobAreTurnedAway) {
  expect_noticed(ServiceRule::kRefuseOtherLineage, "standalone-first",
                 "no coordinator was elected");
}

}  // namespace
}  // namespace elastic::test
