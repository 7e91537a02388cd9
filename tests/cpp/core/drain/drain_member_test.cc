// The agreed step: what a node replies.

#include "core/drain/drain_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace elastic::core {
namespace {

using drain::Order;
using drain::Reply;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DrainMemberTest : public ::testing::Test {
 protected:
  DrainMemberTest() { member_.begin_round(3, {4, 5}); }

  Order order(Order::Kind kind, std::uint64_t proposal, std::int64_t step = drain::kNoStep) {
    return {.kind = kind, .round = 3, .proposal = proposal, .step = step, .notice = {}};
  }
  // Where a node leaves.
  Order departure(std::uint64_t proposal) {
    Order tentative = order(Order::Kind::kTentative, proposal, 10);
    tentative.notice.departure.emplace();
    return tentative;
  }
  drain::StopStepEvent event(Reply::Kind kind, std::uint64_t proposal) {
    return {.kind = kind, .proposal = proposal, .reporting = {1}, .newest = 9, .oldest = 9};
  }
  DrainMember member_;
};

TEST_F(DrainMemberTest, PassesOrdersOfItsRoundToTheGuardian) {
  EXPECT_EQ(member_.on(order(Order::Kind::kAsk, 1)).request,
            (drain::StopStepRequest{Order::Kind::kAsk, 1, drain::kNoStep}));
  Order other = order(Order::Kind::kAsk, 2);
  other.round = 2;
  EXPECT_EQ(member_.on(other).request, std::nullopt);
}

TEST_F(DrainMemberTest, NamesSilentRanksButNotThoseThatHaveEnded) {
  member_.on(order(Order::Kind::kAsk, 1));
  auto reply = member_.on(event(Reply::Kind::kSteps, 1)).reply;
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->reporting, 1);
  EXPECT_THAT(reply->silent, ElementsAre(4));
  member_.worker_ended(0);
  reply = member_.on(event(Reply::Kind::kSteps, 1)).reply;
  EXPECT_EQ(reply->num_silent, 0);
}

TEST_F(DrainMemberTest, ANodeWhoseWorkersHadFinishedHasReachedTheStep) {
  member_.worker_ended(0);
  member_.worker_ended(1);
  member_.on(order(Order::Kind::kTentative, 2, 10));
  EXPECT_FALSE(member_.is_reached());
  member_.on(order(Order::Kind::kCommit, 2, 10));
  EXPECT_TRUE(member_.is_reached());
}

TEST_F(DrainMemberTest, RepeatedProposalIsAcceptedFromMemory) {
  member_.on(order(Order::Kind::kTentative, 2, 10));
  EXPECT_EQ(member_.on(event(Reply::Kind::kAccepted, 2)).reply->held, 10);
  const auto answer = member_.on(order(Order::Kind::kTentative, 2, 10));
  EXPECT_EQ(answer.request, std::nullopt);
  EXPECT_EQ(answer.reply->kind, Reply::Kind::kAccepted);
}

// The coordinator takes back what it has released when the departure takes too long.
TEST_F(DrainMemberTest, AReleaseThatIsWithdrawnIsNoCommitAtNoStep) {
  member_.on(departure(2));
  member_.on(event(Reply::Kind::kAccepted, 2));
  member_.on(order(Order::Kind::kRelease, 2, 10));
  member_.on(order(Order::Kind::kAsk, 3));
  EXPECT_TRUE(member_.on(event(Reply::Kind::kSteps, 3)).reply->is_committed);
  member_.on(order(Order::Kind::kWithdraw, 4));
  member_.on(order(Order::Kind::kAsk, 5));
  const auto reply = member_.on(event(Reply::Kind::kSteps, 5)).reply;
  EXPECT_FALSE(reply->is_committed);
  EXPECT_EQ(reply->held, drain::kNoStep);
}

// The refusal may have been lost with the session.
TEST_F(DrainMemberTest, ARefusalAfterTheAcceptanceIsRepeated) {
  Order tentative = departure(2);
  member_.on(tentative);
  member_.on(event(Reply::Kind::kAccepted, 2));
  drain::StopStepEvent passed = event(Reply::Kind::kRefused, 2);
  passed.newest = 11;
  member_.on(passed);
  const auto answer = member_.on(tentative);
  EXPECT_EQ(answer.request, std::nullopt);
  ASSERT_TRUE(answer.reply);
  EXPECT_EQ(answer.reply->kind, Reply::Kind::kRefused);
  EXPECT_EQ(answer.reply->newest, 11);
  EXPECT_EQ(answer.reply->held, 10);
  member_.on(event(Reply::Kind::kWaiting, 2));
  EXPECT_EQ(member_.on(tentative).reply->kind, Reply::Kind::kWaiting) << "at a later step";
  tentative.proposal = 3;
  member_.on(tentative);
  member_.on(event(Reply::Kind::kAccepted, 3));
  EXPECT_EQ(member_.on(tentative).reply->kind, Reply::Kind::kAccepted);
}

TEST_F(DrainMemberTest, ReportsHowManyOfItsWorkersWait) {
  Order tentative = departure(2);
  member_.on(tentative);
  member_.on(event(Reply::Kind::kAccepted, 2));
  member_.worker_ended(0);
  const auto reply = member_.on(event(Reply::Kind::kWaiting, 2)).reply;
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->kind, Reply::Kind::kWaiting);
  EXPECT_EQ(reply->reporting, 1);
  member_.worker_ended(1);
  tentative.proposal = 3;
  EXPECT_EQ(member_.on(tentative).reply->kind, Reply::Kind::kWaiting);
  EXPECT_EQ(member_.on(tentative).reply->reporting, 0);
}

TEST_F(DrainMemberTest, ReportsWhatItHolds) {
  member_.on(order(Order::Kind::kTentative, 2, 10));
  member_.on(event(Reply::Kind::kAccepted, 2));
  member_.on(order(Order::Kind::kAsk, 3));
  auto reply = member_.on(event(Reply::Kind::kSteps, 3)).reply;
  EXPECT_EQ(reply->held, 10);
  EXPECT_FALSE(reply->is_committed);
  member_.on(order(Order::Kind::kCommit, 3, 10));
  member_.on(order(Order::Kind::kAsk, 4));
  EXPECT_TRUE(member_.on(event(Reply::Kind::kSteps, 4)).reply->is_committed);
}

TEST_F(DrainMemberTest, RefusedAndWithdrawnStepsAreNotHeld) {
  member_.on(order(Order::Kind::kTentative, 2, 10));
  EXPECT_EQ(member_.on(event(Reply::Kind::kRefused, 2)).reply->held, drain::kNoStep);
  member_.on(order(Order::Kind::kTentative, 3, 12));
  member_.on(event(Reply::Kind::kAccepted, 3));
  member_.on(order(Order::Kind::kWithdraw, 4));
  member_.on(order(Order::Kind::kAsk, 5));
  EXPECT_EQ(member_.on(event(Reply::Kind::kSteps, 5)).reply->held, drain::kNoStep);
}

// Where a node leaves, its ranks stop only when it is released.
TEST_F(DrainMemberTest, LeavesOnceWhenItIsReleased) {
  const Order tentative = departure(2);
  EXPECT_EQ(member_.on(tentative).request,
            (drain::StopStepRequest{Order::Kind::kTentative, 2, 10, true}));
  member_.on(event(Reply::Kind::kAccepted, 2));
  EXPECT_EQ(member_.on(event(Reply::Kind::kWaiting, 2)).reply->kind, Reply::Kind::kWaiting);
  EXPECT_EQ(member_.on(tentative).reply->kind, Reply::Kind::kWaiting) << "repeated";
  const auto answer = member_.on(order(Order::Kind::kRelease, 2, 10));
  EXPECT_EQ(answer.leaves_at, 10);
  EXPECT_EQ(answer.request, (drain::StopStepRequest{Order::Kind::kCommit, 2, 10}));
  EXPECT_EQ(member_.on(order(Order::Kind::kRelease, 2, 10)).leaves_at, std::nullopt);
}

TEST_F(DrainMemberTest, NodeWithoutWorkersWaitsAtOnceWhereANodeLeaves) {
  const Order tentative = departure(2);
  member_.worker_ended(0);
  member_.worker_ended(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(member_.on(tentative).reply->kind, Reply::Kind::kWaiting);
  }
}

TEST_F(DrainMemberTest, DoesNotWaitAtARefusedStep) {
  member_.on(order(Order::Kind::kTentative, 2, 10));
  member_.on(event(Reply::Kind::kRefused, 2));
  EXPECT_EQ(member_.on(event(Reply::Kind::kWaiting, 2)).reply, std::nullopt);
}

TEST_F(DrainMemberTest, RepliesForWorkersThatAreGone) {
  member_.on(order(Order::Kind::kTentative, 2, 10));
  member_.on(event(Reply::Kind::kAccepted, 2));
  member_.on(order(Order::Kind::kCommit, 2, 10));
  member_.worker_ended(0);
  member_.worker_ended(1);
  auto ended = event(Reply::Kind::kEnded, 2);
  ended.stopped = 2;
  ended.first_stop = ended.last_stop = 10;
  member_.on(ended);
  EXPECT_TRUE(member_.is_reached());
  const auto steps = member_.on(order(Order::Kind::kAsk, 1)).reply;
  EXPECT_TRUE(steps->is_committed);
  const auto again = member_.on(order(Order::Kind::kCommit, 1, 10)).reply;
  EXPECT_EQ(again->kind, Reply::Kind::kEnded);
  EXPECT_EQ(again->proposal, 1U);
  EXPECT_EQ(again->stopped, 2);
}

}  // namespace
}  // namespace elastic::core
