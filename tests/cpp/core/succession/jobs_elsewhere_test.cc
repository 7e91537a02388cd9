// Where a process sends the nodes of jobs that it does not coordinate, and for how long.

#include "core/succession/jobs_elsewhere.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;
using Hello = JobsElsewhere::Hello;
using Here = JobsElsewhere::Here;

constexpr Instant kStart{1h};

Incumbent elected_in(std::uint64_t lineage, std::uint64_t term) {
  return {.lineage = {lineage, 0},
          .term = term,
          .node = {lineage, term},
          .address = "10.0.0." + std::to_string(lineage) + ":29400",
          .voters = {}};
}

TEST(JobsElsewhere, AreForgottenWhenTheyAnnounceThemselvesNoMore) {
  JobsElsewhere all;
  EXPECT_EQ(all.find("job", kStart), nullptr);
  all.announced("job", elected_in(1, 2), kStart);
  ASSERT_NE(all.find("job", kStart + 1s), nullptr);
  ASSERT_NE(all.find("", kStart + 1s), nullptr);
  EXPECT_EQ(all.find("other", kStart + 1s), nullptr);
  all.announced("job", elected_in(1, 2), kStart + kAnnounceInterval);
  EXPECT_NE(all.find("job", kStart + kAnnouncedFor), nullptr);
  EXPECT_EQ(all.find("job", kStart + kAnnouncedFor + kAnnounceInterval), nullptr);
  all.announced("job", elected_in(1, 2), kStart + 60s);
  all.announced("other", elected_in(2, 2), kStart + 60s);
  EXPECT_EQ(all.find("", kStart + 60s), nullptr) << "an empty id selects the only job";
}

TEST(JobsElsewhere, OfTwoCoordinatorsTheOneThatGoesOnIsKept) {
  JobsElsewhere all;
  const auto add = [&](const Incumbent& one, Instant now) {
    return all.announced("job", one, now);
  };
  add(elected_in(2, 2), kStart);
  EXPECT_EQ(add(elected_in(3, 2), kStart), elected_in(2, 2));
  EXPECT_EQ(add(elected_in(2, 1), kStart), elected_in(2, 2)) << "a former term";
  EXPECT_EQ(add(elected_in(2, 3), kStart), elected_in(2, 3));
  EXPECT_EQ(add(elected_in(1, 3), kStart), elected_in(1, 3));
  // The one that is refused does not prolong the entry of the other one.
  EXPECT_EQ(add(elected_in(2, 3), kStart + kAnnouncedFor), elected_in(2, 3));
}

TEST(JobsElsewhere, DecideWhereANodeGoes) {
  const reg::LineageId former{1, 0};
  const reg::LineageId other{9, 0};
  const Here elsewhere;
  const Here here{.is_coordinated = true, .lineage = former};
  const Here standby{.is_standby = true};
  const std::optional<Incumbent> admitted;
  const std::optional<Incumbent> searches = Incumbent{};
  const std::optional<Incumbent> successor = elected_in(1, 2);
  const auto nothing = [](JobsElsewhere&) {};
  const auto expired = [](JobsElsewhere& all) { all.lost("job", {}, kStart); };
  const auto moved = [](JobsElsewhere& all) { all.lost("job", elected_in(1, 2), kStart); };
  struct Case {
    std::string name;
    std::string own;
    std::function<void(JobsElsewhere&)> before;
    std::optional<reg::LineageId> node;
    Here here;
    Duration later;
    std::optional<Incumbent> expected;
  };
  const std::vector<Case> cases = {
      {"a new job", "", nothing, {}, elsewhere, 0s, admitted},
      {"a node of a job with voters", "", nothing, former, elsewhere, 0s, searches},
      {"the job of this process", "", nothing, {}, here, 0s, admitted},
      {"a node of its lineage", "", nothing, former, here, 0s, admitted},
      {"a node of another lineage", "", nothing, other, here, 0s, searches},
      {"at a standby", "job", nothing, {}, standby, 0s, searches},
      {"lost, a newcomer", "", expired, {}, elsewhere, 1ms, admitted},
      {"lost, a node of it", "", expired, former, elsewhere, 1ms, searches},
      {"lost, long ago", "", expired, former, elsewhere, 1h, searches},
      {"moved, a newcomer", "", moved, {}, elsewhere, 1s, successor},
      {"moved, a node of it", "", moved, former, elsewhere, 1s, successor},
      {"moved, a node of another one", "", moved, other, elsewhere, 1s, searches},
      {"moved, and the successor is gone", "", moved, {}, elsewhere, kAnnouncedFor, admitted},
      {"the same, a node of it", "", moved, former, elsewhere, kAnnouncedFor, searches},
      {"a guest's job moved", "own", moved, {}, elsewhere, kAnnouncedFor, admitted},
      {"the own job moved", "job", moved, {}, elsewhere, 1h, successor},
      {"the own job is lost", "job", expired, {}, elsewhere, 1h, searches},
  };
  for (const Case& one : cases) {
    JobsElsewhere all(one.own);
    one.before(all);
    EXPECT_EQ(all.answer({"job", one.node}, one.here, kStart + one.later), one.expected)
        << one.name;
  }
}

// The successor of a job that was lost here may be unknown yet.
TEST(JobsElsewhere, TheNextJobOfAnIdWaitsForAnAnnouncement) {
  JobsElsewhere all;
  EXPECT_EQ(all.hold("job", kStart), 0s);
  all.lost("job", {}, kStart);
  EXPECT_GT(all.hold("job", kStart), kAnnounceInterval);
  EXPECT_EQ(all.hold("other", kStart), 0s);
  EXPECT_EQ(all.find("job", kStart), nullptr);
  EXPECT_EQ(all.hold("job", kStart + 1h), 0s);
  all.announced("job", elected_in(1, 2), kStart + 1s);
  EXPECT_EQ(all.answer({"job", {}}, {}, kStart + 1s), elected_in(1, 2));
}

}  // namespace
}  // namespace elastic::succession
