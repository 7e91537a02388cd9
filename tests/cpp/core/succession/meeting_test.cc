// Which of two coordinators of one job id goes on.

#include "core/succession/meeting.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace elastic::succession {
namespace {

Incumbent coordinator(std::uint64_t lineage, std::uint64_t term) {
  return {.lineage = {lineage, 0},
          .term = term,
          .node = {lineage, term},
          .address = "10.0.0." + std::to_string(lineage) + ":29400",
          .voters = {}};
}

TEST(Meeting, IsDecidedByTheTermThenByTheLineage) {
  struct Case {
    std::optional<Incumbent> ours;
    Incumbent theirs;
    Meeting expected;
  };
  const std::vector<Case> cases = {
      {std::nullopt, coordinator(1, 2), Meeting::kTheirs},
      {std::nullopt, {}, Meeting::kOurs},  // the other job has no record either
      {coordinator(1, 1), {}, Meeting::kOurs},
      {coordinator(1, 1), coordinator(2, 2), Meeting::kTheirs},
      {coordinator(1, 3), coordinator(2, 2), Meeting::kOurs},
      {coordinator(1, 2), coordinator(2, 2), Meeting::kOurs},
      {coordinator(2, 2), coordinator(1, 2), Meeting::kTheirs},
      {coordinator(1, 2), coordinator(1, 2), Meeting::kSame},
      {coordinator(1, 2), coordinator(1, 3), Meeting::kLater},
      {coordinator(1, 3), coordinator(1, 2), Meeting::kSame},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(meet(one.ours, one.theirs), one.expected)
        << (one.ours ? one.ours->address : "none") << " and " << one.theirs.address;
  }
}

// A total order: both sides decide alike, and the winner does not depend on who meets whom first.
TEST(Meeting, BothSidesDecideAlikeAndTheOrderIsTransitive) {
  std::vector<Incumbent> all;
  for (std::uint64_t lineage = 1; lineage <= 4; ++lineage) {
    for (std::uint64_t term = 1; term <= 3; ++term) all.push_back(coordinator(lineage, term));
  }
  const auto wins = [](const Incumbent& a, const Incumbent& b) {
    return meet(a, b) == Meeting::kOurs;
  };
  for (const Incumbent& a : all) {
    for (const Incumbent& b : all) {
      if (a.lineage == b.lineage) continue;
      EXPECT_NE(wins(a, b), wins(b, a));
      for (const Incumbent& c : all) {
        if (c.lineage == a.lineage || c.lineage == b.lineage) continue;
        EXPECT_TRUE(!wins(a, b) || !wins(b, c) || wins(a, c));
      }
    }
  }
}

}  // namespace
}  // namespace elastic::succession
