// The way to the first step of a round, and the steps that are made again.

#include "core/agent/round_marks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "support/instant.h"

namespace elastic::core {
namespace {

using support::at;

TEST(RoundMarks, OnlyTheFirstStepOfARoundIsReported) {
  RoundMarks marks;
  marks.begin_round();
  marks.opened(at(1));
  marks.opened(at(2));
  EXPECT_EQ(marks.reported(-1, {}, {}), std::nullopt) << "a worker wrote garbage";
  const auto first = marks.reported(7, at(3), at(4));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->step, 7);
  EXPECT_EQ(first->opened, at(1));
  EXPECT_EQ(first->store_used, at(3));
  EXPECT_EQ(first->store_filled, at(4));
  EXPECT_EQ(first->lost_steps, -1) << "no round was before it";
  EXPECT_FALSE(marks.reported(8, at(3), at(4)));
  marks.begin_round();
  const auto second = marks.reported(1, {}, {});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->opened, std::nullopt) << "that was in the round before";
}

TEST(RoundMarks, LostStepsAreThoseThatAreMadeAgain) {
  struct Case {
    std::vector<std::vector<std::int64_t>> rounds;  // the last steps of the workers of each
    std::int64_t first;
    std::int64_t lost;
    const char* what;
  };
  const std::vector<Case> cases = {
      {{{100, 99}}, 91, 10, "the newest step of a worker counts"},
      {{{100}}, 101, 0, "a checkpoint was written at the last step"},
      {{{100}}, 150, 0, "a later checkpoint of another node"},
      {{{100}, {-1, -1}}, 91, 10, "the round between them made no step"},
      {{{100}, {95}}, 91, 5, "the round between them was shorter"},
      {{{-1}}, 1, -1, "no step was reported"},
      {{{0}}, 0, 1, "a step of zero is a report"},
      {{{INT64_MAX}}, 0, INT64_MAX, "garbage"},
  };
  for (const Case& one : cases) {
    RoundMarks marks;
    for (const auto& workers : one.rounds) {
      marks.begin_round();
      for (const std::int64_t step : workers) marks.ended(step);
    }
    marks.begin_round();
    const auto first = marks.reported(one.first, {}, {});
    ASSERT_TRUE(first) << one.what;
    EXPECT_EQ(first->lost_steps, one.lost) << one.what;
  }
}

}  // namespace
}  // namespace elastic::core
