// Runs the register under faults, seed by seed. A failure prints the line that replays it with a
// trace.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "sim/register_scenes.h"
#include "sim/seeds.h"

namespace elastic::test {
namespace {

std::string name_of(RegisterScene scene) {
  return std::string(kRegisterScenes[static_cast<std::size_t>(scene)]);
}

struct Sweep {
  std::uint64_t seeds = 0;
  std::uint64_t delivered = 0;
  std::uint64_t elections = 0;
  std::uint64_t recoveries = 0;  // runs whose end was checked for progress
};

Sweep sweep(RegisterScene scene, std::uint64_t count) {
  const Seeds seeds = seeds_of(count);
  Sweep total;
  int failed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end && failed < 3; ++seed) {
    const RegisterSimReport report = simulate_register(scene, seed, {});
    ++total.seeds;
    total.delivered += report.delivered;
    total.elections += report.elections;
    total.recoveries += report.is_liveness_checked ? 1 : 0;
    if (report.violations.empty()) continue;
    ++failed;
    for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
    ADD_FAILURE() << "replay: ELASTIC_SIM_REPLAY=" << name_of(scene) << ":" << seed
                  << " build/quick/tests/cpp/sim/sim_tests --gtest_filter=RegisterSim.Replay";
  }
  return total;
}

TEST(RegisterSim, FaultsContradictNoRecordInForce) {
  const Sweep total = sweep(RegisterScene::kFaults, 1000);
  if (HasFailure() || total.seeds < kSeedsToJudge) return;
  EXPECT_GT(total.delivered, 10 * total.seeds);
  EXPECT_GT(total.elections, total.seeds);
  EXPECT_GT(total.recoveries, total.seeds / 2) << "most runs end with a majority";
}

TEST(RegisterSim, NodesThatChangeTheirLineageContradictNeither) {
  const Sweep total = sweep(RegisterScene::kTwoLineages, 500);
  if (HasFailure() || total.seeds < kSeedsToJudge) return;
  EXPECT_GT(total.elections, total.seeds);
}

TEST(RegisterSim, AnyOneHostOfThreeMayBeLost) { sweep(RegisterScene::kHostLost, 300); }
TEST(RegisterSim, HostsMayBeLostOneAfterTheOther) { sweep(RegisterScene::kLosses, 200); }
TEST(RegisterSim, TwoOfFiveVotersMayBeLostAtOnce) { sweep(RegisterScene::kTwoOfFive, 200); }
TEST(RegisterSim, OldStateFilesGiveNoVote) { sweep(RegisterScene::kOldFiles, 300); }
TEST(RegisterSim, OneBadLinkEndsNoAuthority) { sweep(RegisterScene::kBadLink, 200); }
TEST(RegisterSim, AMinorityGivesUpAfterStoreGrace) { sweep(RegisterScene::kMinority, 200); }
TEST(RegisterSim, AVoterThatAcceptsNothingIsReplaced) { sweep(RegisterScene::kDeafVoter, 200); }

TEST(RegisterSim, OneSeedIsOneRun) {
  RegisterSimOptions options;
  options.is_traced = true;
  const RegisterSimReport once = simulate_register(RegisterScene::kFaults, 7, options);
  EXPECT_EQ(once.trace, simulate_register(RegisterScene::kFaults, 7, options).trace);
  EXPECT_FALSE(once.trace.empty());
}

TEST(RegisterSim, Replay) {
  const char* which = std::getenv("ELASTIC_SIM_REPLAY");
  if (which == nullptr) GTEST_SKIP() << "set ELASTIC_SIM_REPLAY=<scene>:<seed> to see one run";
  const std::string text = which;
  const std::size_t colon = text.find(':');
  const auto scene =
      std::find(std::begin(kRegisterScenes), std::end(kRegisterScenes), text.substr(0, colon));
  ASSERT_NE(scene, std::end(kRegisterScenes)) << "no such scene: " << text;
  RegisterSimOptions options;
  options.is_traced = true;
  const RegisterSimReport report =
      simulate_register(static_cast<RegisterScene>(scene - std::begin(kRegisterScenes)),
                        std::stoull(text.substr(colon + 1)), options);
  for (const std::string& line : report.trace) std::cout << line << "\n";
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace elastic::test
