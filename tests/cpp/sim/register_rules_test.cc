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
  const char* name;
  reg::Rule rule;
  RegisterScene scene;
};

using enum RegisterScene;
constexpr DeletedRule kDeleted[] = {
    {"OneLineage", reg::Rule::kOneLineage, kTwoLineages},
    {"DistinctHosts", reg::Rule::kDistinctHosts, kHostLost},
    {"StrictMajority", reg::Rule::kStrictMajority, kFaults},
    {"OldMajority", reg::Rule::kOldMajority, kFaults},
    {"NewMajority", reg::Rule::kNewMajority, kTwoOfFive},
    {"AcceptPromises", reg::Rule::kAcceptPromises, kFaults},
    {"TellInForce", reg::Rule::kTellInForce, kFaults},
    {"RefuseLowerTerm", reg::Rule::kRefuseLowerTerm, kFaults},
    {"PromiseOnce", reg::Rule::kPromiseOnce, kFaults},
    {"BothSets", reg::Rule::kBothSets, kFaults},
    {"FollowNewer", reg::Rule::kFollowNewer, kFaults},
    {"AdoptNewest", reg::Rule::kAdoptNewest, kFaults},
    {"TermBeforeSequence", reg::Rule::kTermBeforeSequence, kFaults},
    {"ReproposeFirst", reg::Rule::kReproposeFirst, kFaults},
    {"LostIncumbent", reg::Rule::kLostIncumbent, kBadLink},
    {"AskFirst", reg::Rule::kAskFirst, kBadLink},
    {"StartApart", reg::Rule::kStartApart, kHostLost},
    {"ReplaceVoters", reg::Rule::kReplaceVoters, kLosses},
    {"Expire", reg::Rule::kExpire, kMinority},
    {"StateOfOneVoter", reg::Rule::kStateOfOneVoter, kOldFiles},
    {"KeepEarlyPromise", reg::Rule::kKeepEarlyPromise, kFaults},
};
static_assert(std::size(kDeleted) == reg::kRules);

void PrintTo(const DeletedRule& deleted, std::ostream* out) { *out << deleted.name; }

// Some seed reports a violation that it does not report with all rules.
void expect_caught(RegisterScene scene, const RegisterSimOptions& options) {
  for (std::uint64_t seed = 1; seed <= kSeedsMax; ++seed) {
    const RegisterSimReport report = simulate_register(scene, seed, options);
    if (report.violations.empty()) continue;
    testing::Test::RecordProperty("seed", std::to_string(seed));
    testing::Test::RecordProperty("violation", report.violations.front());
    EXPECT_THAT(simulate_register(scene, seed, {}).violations, testing::IsEmpty());
    return;
  }
  ADD_FAILURE() << "no seed up to " << kSeedsMax << " needs the rule";
}

class RegisterRules : public testing::TestWithParam<DeletedRule> {};

TEST_P(RegisterRules, SimulationFailsWithout) {
  RegisterSimOptions options;
  options.deleted = GetParam().rule;
  expect_caught(GetParam().scene, options);
}

INSTANTIATE_TEST_SUITE_P(Each, RegisterRules, testing::ValuesIn(kDeleted),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(RegisterRules, AVoterThatForgetsItsPromisesIsCaught) {
  RegisterSimOptions options;
  options.do_restarts_forget = true;
  expect_caught(RegisterScene::kOldFiles, options);
}

}  // namespace
}  // namespace elastic::test
