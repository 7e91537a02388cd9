// Each rule of the register is deleted in turn, and the simulation must notice: otherwise either
// the rule is superfluous or the simulation too weak to trust it about the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>

#include "sim/register_scenes.h"

namespace elastic::test {
namespace {

constexpr std::uint64_t kSeedsMax = 10'000;

struct DeletedRule {
  reg::Rule rule;
  RegisterScene scene;
  std::uint64_t first = 1;  // of the seeds: few need the rule, and this is one of them
};

using enum RegisterScene;
constexpr DeletedRule kDeleted[] = {
    {reg::Rule::kOneLineage, kTwoLineages},
    {reg::Rule::kDistinctHosts, kHostLost},
    {reg::Rule::kStrictMajority, kFaults},
    {reg::Rule::kOldMajority, kFaults},
    {reg::Rule::kNewMajority, kTwoOfFive},
    {reg::Rule::kAcceptPromises, kFaults},
    {reg::Rule::kTellInForce, kFaults},
    {reg::Rule::kRefuseLowerTerm, kFaults},
    {reg::Rule::kPromiseOnce, kOldFiles, 1469},
    {reg::Rule::kBothSets, kFaults},
    {reg::Rule::kFollowNewer, kFaults, 698},
    {reg::Rule::kAdoptNewest, kFaults},
    {reg::Rule::kTermBeforeSequence, kFaults},
    {reg::Rule::kReproposeFirst, kFaults},
    {reg::Rule::kLostIncumbent, kBadLink},
    {reg::Rule::kAskFirst, kBadLink},
    {reg::Rule::kStartApart, kHostLost},
    {reg::Rule::kReplaceVoters, kLosses},
    {reg::Rule::kExpire, kMinority},
    {reg::Rule::kStateOfOneVoter, kOldFiles},
    {reg::Rule::kKeepEarlyPromise, kFaults, 385},
    {reg::Rule::kJudgeAcceptance, kDeafVoter},
};
static_assert(std::size(kDeleted) == reg::kRules);

std::string name_of(const DeletedRule& deleted) {
  return std::string(reg::kRuleNames[static_cast<std::size_t>(deleted.rule)]);
}

void PrintTo(const DeletedRule& deleted, std::ostream* out) { *out << name_of(deleted); }

// Some seed reports a violation that it does not report with all rules.
void expect_caught(RegisterScene scene, const RegisterSimOptions& options,
                   std::uint64_t first = 1) {
  for (std::uint64_t seed = first; seed < first + kSeedsMax; ++seed) {
    const RegisterSimReport report = simulate_register(scene, seed, options);
    if (report.violations.empty()) continue;
    testing::Test::RecordProperty("seed", std::to_string(seed));
    testing::Test::RecordProperty("violation", report.violations.front());
    EXPECT_THAT(simulate_register(scene, seed, {}).violations, testing::IsEmpty());
    return;
  }
  ADD_FAILURE() << "none of " << kSeedsMax << " seeds needs the rule";
}

class RegisterRules : public testing::TestWithParam<DeletedRule> {};

TEST_P(RegisterRules, SimulationFailsWithout) {
  RegisterSimOptions options;
  options.deleted = GetParam().rule;
  expect_caught(GetParam().scene, options, GetParam().first);
}

INSTANTIATE_TEST_SUITE_P(Each, RegisterRules, testing::ValuesIn(kDeleted),
                         [](const auto& test) { return name_of(test.param); });

TEST(RegisterRules, AVoterThatForgetsItsPromisesIsCaught) {
  RegisterSimOptions options;
  options.do_restarts_forget = true;
  expect_caught(RegisterScene::kOldFiles, options);
}

}  // namespace
}  // namespace elastic::test
