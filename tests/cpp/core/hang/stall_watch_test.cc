// When a job whose ranks wait is looked at, and when the rank that they wait for is named.

#include "core/hang/stall_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace elastic::core {
namespace {

using namespace std::chrono_literals;

const std::vector<std::int32_t> kAll = {0, 1, 2, 3};

Instant after(Duration time) { return Instant{} + 1000s + time; }

CollectiveVerdict waits_for(std::int32_t rank, const std::string& operation = "all_reduce #4") {
  CollectiveVerdict verdict;
  verdict.suspect = rank;
  verdict.causes = {rank};
  verdict.key = "rank " + std::to_string(rank) + " has not entered " + operation;
  verdict.text = verdict.key + ", for which 3 ranks wait";
  return verdict;
}

class StallWatchTest : public ::testing::Test {
 protected:
  // Ranks wait since the begin.
  StallWatchTest() { watch_.follow(after(0s), {}, after(4s)); }

  // A look of all nodes when it is due. Returns its time; negative: none is due.
  Duration look(const CollectiveVerdict& verdict, const std::vector<std::int32_t>& idle) {
    const auto due = watch_.look_at();
    if (!due) return -1s;
    now_ = *due;
    is_stalled_ = watch_.looked(verdict, idle, kAll, true, now_);
    return now_ - after(0s);
  }

  StallWatch watch_;
  Instant now_;
  bool is_stalled_ = false;
};

TEST_F(StallWatchTest, NamesARankThatDoesNothingAfterTwoLooksFiveSecondsApart) {
  EXPECT_EQ(look(waits_for(3), {}), 7s);
  EXPECT_FALSE(is_stalled_);
  EXPECT_EQ(look(waits_for(3), {3}), 12s);
  EXPECT_TRUE(is_stalled_);
  EXPECT_EQ(watch_.report(waits_for(3), now_ + 1s), waits_for(3).text);
  EXPECT_EQ(look(waits_for(3), {3}), 43s);
  EXPECT_FALSE(is_stalled_) << "one line for each cause";
  watch_.follow(std::nullopt, {}, after(31s));
  EXPECT_EQ(watch_.take_end(after(31s)), std::nullopt) << "the round may be over";
  EXPECT_EQ(watch_.end_at(), after(41s));
  EXPECT_EQ(watch_.take_end(after(41s)), "rank 3 continues after 31 s");
  EXPECT_EQ(watch_.take_end(after(42s)), std::nullopt);
  EXPECT_EQ(watch_.take_note(), "");
}

// Rank 3 goes on and rank 2 stops, while a rank waits for both.
TEST_F(StallWatchTest, NamesAnotherRankOnceTheFirstOneHasGoneOn) {
  look(waits_for(3), {3});
  look(waits_for(3), {3});
  ASSERT_TRUE(is_stalled_);
  watch_.report(waits_for(3), now_);
  EXPECT_EQ(look(waits_for(2, "all_reduce #5"), {2}), 42s);
  EXPECT_FALSE(is_stalled_) << "it may be on its way";
  ASSERT_TRUE(watch_.stall());
  EXPECT_EQ(watch_.stall()->suspect, 2);
  EXPECT_EQ(watch_.stall()->place, "");
  EXPECT_EQ(look(waits_for(3), {3}), 47s);
  EXPECT_EQ(watch_.stall()->suspect, 3);
  EXPECT_EQ(look(waits_for(2, "all_reduce #5"), {2}), 107s);
  EXPECT_EQ(look(waits_for(2, "all_reduce #5"), {2}), 112s);
  EXPECT_TRUE(is_stalled_);
  EXPECT_EQ(watch_.report(waits_for(2, "all_reduce #5"), now_), waits_for(2, "all_reduce #5").text);
  watch_.follow(std::nullopt, {}, after(120s));
  EXPECT_EQ(watch_.take_end(after(130s)), "rank 2 continues after 2 min");
}

// A node that does not answer is no cause.
TEST_F(StallWatchTest, KeepsItsLineIfALaterLookHasNotAllNodes) {
  look(waits_for(3), {3});
  look(waits_for(3), {3});
  watch_.report(waits_for(3), now_);
  for (int i = 0; i < 3; ++i) {
    now_ = *watch_.look_at();
    EXPECT_FALSE(watch_.looked(waits_for(1), {1}, kAll, false, now_));
    EXPECT_EQ(watch_.stall()->suspect, 3);
  }
}

TEST_F(StallWatchTest, SaysThatARankHasExited) {
  look(waits_for(7), {});
  look(waits_for(7), {});
  EXPECT_TRUE(is_stalled_);
  EXPECT_EQ(watch_.report(waits_for(7), now_), waits_for(7).text + "; it has exited");
}

// A rank that sleeps for ten seconds is not distinguished from a job that is slow.
TEST_F(StallWatchTest, HasNoLineForAWaitThatEndsBeforeTheSecondLook) {
  look(waits_for(3), {});
  watch_.follow(std::nullopt, {}, after(10s));
  EXPECT_EQ(watch_.look_at(), std::nullopt);
  EXPECT_EQ(watch_.end_at(), std::nullopt);
}

TEST_F(StallWatchTest, LeavesARankAloneThatWorksAndLooksAgain) {
  for (const Duration expected : {7s, 12s, 22s, 32s, 42s}) {
    EXPECT_EQ(look(waits_for(3), {0, 1, 2}), expected);
    EXPECT_FALSE(is_stalled_);
  }
  look(waits_for(3), {0, 1, 2, 3});  // the evaluation ends in a lock
  EXPECT_TRUE(is_stalled_);
}

TEST_F(StallWatchTest, NotesARankThatWorksOnceAndItsEnd) {
  look(waits_for(3), {});
  EXPECT_EQ(watch_.take_note(), "");
  look(waits_for(3), {0});
  EXPECT_EQ(watch_.take_note(), waits_for(3).key + "; it computes, reads or writes");
  look(waits_for(3), {0});
  EXPECT_EQ(watch_.take_note(), "");
  watch_.follow(std::nullopt, {}, after(31s));
  EXPECT_EQ(watch_.take_end(after(40s)), std::nullopt) << "a worker may end by the wait's timeout";
  EXPECT_EQ(watch_.take_end(after(41s)), "") << "no line";
  EXPECT_EQ(watch_.end_at(), std::nullopt);
  watch_.follow(after(50s), {}, after(54s));
  look(waits_for(2), {});
  look(waits_for(2), {});
  EXPECT_EQ(watch_.take_note(), waits_for(2).key + "; it computes, reads or writes");
  look(waits_for(2), kAll);  // it ends in a lock
  EXPECT_NE(watch_.report(waits_for(2), now_), "");
  watch_.follow(std::nullopt, {}, after(110s));
  EXPECT_EQ(watch_.take_end(after(120s)), "rank 2 continues after 1 min");
}

TEST_F(StallWatchTest, NamesNobodyWhileTheWaitsChange) {
  look(waits_for(3), {});
  look(waits_for(2), {2, 3});
  EXPECT_FALSE(is_stalled_) << "another rank";
  look(waits_for(2, "barrier #5"), {2, 3});
  EXPECT_FALSE(is_stalled_) << "another operation";
  look({}, kAll);
  EXPECT_FALSE(is_stalled_) << "nothing is known";
  look({}, kAll);
  EXPECT_FALSE(is_stalled_);
}

TEST_F(StallWatchTest, HasNoLineWhenTheStacksShowThatTheRankIsElsewhere) {
  look(waits_for(3), {});
  look(waits_for(3), {3});
  EXPECT_EQ(watch_.report(waits_for(2), now_ + 1s), "");
  EXPECT_EQ(watch_.look_at(), now_ + 11s);
  watch_.follow(std::nullopt, {}, after(60s));
  EXPECT_EQ(watch_.end_at(), std::nullopt) << "no line, and no line for its end";
}

TEST_F(StallWatchTest, NeedsTheRepliesOfAllNodes) {
  for (int i = 0; i < 3; ++i) {
    now_ = *watch_.look_at();
    EXPECT_FALSE(watch_.looked(waits_for(3), {3}, kAll, false, now_));
  }
}

TEST_F(StallWatchTest, NamesARankThatHasExited) {
  look(waits_for(9), {});
  look(waits_for(9), {});
  EXPECT_TRUE(is_stalled_);
}

// In a circle of waits a rank may have begun an operation and compute.
TEST_F(StallWatchTest, SuspectsOperationsOnlyWhileNoRankWorks) {
  CollectiveVerdict circle;
  circle.key = circle.text = "the ranks call operations in different orders";
  look(circle, {});
  look(circle, {0, 1, 2});
  EXPECT_FALSE(is_stalled_);
  look(circle, kAll);
  EXPECT_TRUE(is_stalled_);
  watch_.report(circle, now_);
  watch_.follow(after(40s), {}, after(45s));
  EXPECT_EQ(watch_.take_end(after(55s)), "the ranks continue after 45 s");
  EXPECT_EQ(watch_.look_at(), after(47s)) << "the next stall has begun";
}

TEST_F(StallWatchTest, BeginsAnewWithEachProgress) {
  watch_.follow(after(1s), {}, after(5s));  // the same wait, in another message
  EXPECT_EQ(watch_.look_at(), after(7s));
  watch_.follow(after(5s), {}, after(6s));
  EXPECT_EQ(watch_.look_at(), after(12s));
}

TEST(StallWatch, WaitsForTheLimitOfAnOpenSection) {
  StallWatch watch;
  watch.follow(after(0s), 600s, after(4s));
  EXPECT_EQ(watch.look_at(), after(600s));
  watch.shift(10s);
  EXPECT_EQ(watch.look_at(), after(610s));
}

}  // namespace
}  // namespace elastic::core
