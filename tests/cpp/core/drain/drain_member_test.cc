// The agreed step: what a node replies.

#include "core/drain/drain_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "core/drain/drain_world.h"

namespace elastic::core {
namespace {

using drain::Order;
using drain::Reply;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DrainMemberTest : public ::testing::Test {
 protected:
  DrainMemberTest() { answer(drain_sim::round_began(3, 2, 4)); }

  DrainMember::Answer answer(const DrainMember::Event& event) {
    return drain_sim::answer_of(&member_, event);
  }
  void end_worker(int local_rank) { answer(node_event::WorkerEnded{local_rank, {}}); }

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
  EXPECT_EQ(answer(order(Order::Kind::kAsk, 1)).request,
            (drain::StopStepRequest{Order::Kind::kAsk, 1, drain::kNoStep}));
  Order other = order(Order::Kind::kAsk, 2);
  other.round = 2;
  EXPECT_EQ(answer(other).request, std::nullopt);
}

TEST_F(DrainMemberTest, NamesSilentRanksButNotThoseThatHaveEnded) {
  answer(order(Order::Kind::kAsk, 1));
  auto reply = answer(event(Reply::Kind::kSteps, 1)).reply;
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->reporting, 1);
  EXPECT_THAT(reply->silent, ElementsAre(4));
  end_worker(0);
  reply = answer(event(Reply::Kind::kSteps, 1)).reply;
  EXPECT_EQ(reply->num_silent, 0);
}

TEST_F(DrainMemberTest, ANodeWhoseWorkersHadFinishedHasReachedTheStep) {
  end_worker(0);
  end_worker(1);
  answer(order(Order::Kind::kTentative, 2, 10));
  EXPECT_FALSE(member_.is_reached());
  answer(order(Order::Kind::kCommit, 2, 10));
  EXPECT_TRUE(member_.is_reached());
}

TEST_F(DrainMemberTest, RepeatedProposalIsAcceptedFromMemory) {
  answer(order(Order::Kind::kTentative, 2, 10));
  EXPECT_EQ(answer(event(Reply::Kind::kAccepted, 2)).reply->held, 10);
  const auto found = answer(order(Order::Kind::kTentative, 2, 10));
  EXPECT_EQ(found.request, std::nullopt);
  EXPECT_EQ(found.reply->kind, Reply::Kind::kAccepted);
}

// The coordinator takes back what it has released when the departure takes too long.
TEST_F(DrainMemberTest, AReleaseThatIsWithdrawnIsNoCommitAtNoStep) {
  answer(departure(2));
  answer(event(Reply::Kind::kAccepted, 2));
  answer(order(Order::Kind::kRelease, 2, 10));
  answer(order(Order::Kind::kAsk, 3));
  EXPECT_TRUE(answer(event(Reply::Kind::kSteps, 3)).reply->is_committed);
  answer(order(Order::Kind::kWithdraw, 4));
  answer(order(Order::Kind::kAsk, 5));
  const auto reply = answer(event(Reply::Kind::kSteps, 5)).reply;
  EXPECT_FALSE(reply->is_committed);
  EXPECT_EQ(reply->held, drain::kNoStep);
}

// The refusal may have been lost with the session.
TEST_F(DrainMemberTest, ARefusalAfterTheAcceptanceIsRepeated) {
  Order tentative = departure(2);
  answer(tentative);
  answer(event(Reply::Kind::kAccepted, 2));
  drain::StopStepEvent passed = event(Reply::Kind::kRefused, 2);
  passed.newest = 11;
  answer(passed);
  const auto found = answer(tentative);
  EXPECT_EQ(found.request, std::nullopt);
  ASSERT_TRUE(found.reply);
  EXPECT_EQ(found.reply->kind, Reply::Kind::kRefused);
  EXPECT_EQ(found.reply->newest, 11);
  EXPECT_EQ(found.reply->held, 10);
  answer(event(Reply::Kind::kWaiting, 2));
  EXPECT_EQ(answer(tentative).reply->kind, Reply::Kind::kWaiting) << "at a later step";
  tentative.proposal = 3;
  answer(tentative);
  answer(event(Reply::Kind::kAccepted, 3));
  EXPECT_EQ(answer(tentative).reply->kind, Reply::Kind::kAccepted);
}

TEST_F(DrainMemberTest, ReportsHowManyOfItsWorkersWait) {
  Order tentative = departure(2);
  answer(tentative);
  answer(event(Reply::Kind::kAccepted, 2));
  end_worker(0);
  const auto reply = answer(event(Reply::Kind::kWaiting, 2)).reply;
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->kind, Reply::Kind::kWaiting);
  EXPECT_EQ(reply->reporting, 1);
  end_worker(1);
  tentative.proposal = 3;
  EXPECT_EQ(answer(tentative).reply->kind, Reply::Kind::kWaiting);
  EXPECT_EQ(answer(tentative).reply->reporting, 0);
}

TEST_F(DrainMemberTest, ReportsWhatItHolds) {
  answer(order(Order::Kind::kTentative, 2, 10));
  answer(event(Reply::Kind::kAccepted, 2));
  answer(order(Order::Kind::kAsk, 3));
  auto reply = answer(event(Reply::Kind::kSteps, 3)).reply;
  EXPECT_EQ(reply->held, 10);
  EXPECT_FALSE(reply->is_committed);
  answer(order(Order::Kind::kCommit, 3, 10));
  answer(order(Order::Kind::kAsk, 4));
  EXPECT_TRUE(answer(event(Reply::Kind::kSteps, 4)).reply->is_committed);
}

TEST_F(DrainMemberTest, RefusedAndWithdrawnStepsAreNotHeld) {
  answer(order(Order::Kind::kTentative, 2, 10));
  EXPECT_EQ(answer(event(Reply::Kind::kRefused, 2)).reply->held, drain::kNoStep);
  answer(order(Order::Kind::kTentative, 3, 12));
  answer(event(Reply::Kind::kAccepted, 3));
  answer(order(Order::Kind::kWithdraw, 4));
  answer(order(Order::Kind::kAsk, 5));
  EXPECT_EQ(answer(event(Reply::Kind::kSteps, 5)).reply->held, drain::kNoStep);
}

// Where a node leaves, its ranks stop only when it is released.
TEST_F(DrainMemberTest, LeavesOnceWhenItIsReleased) {
  const Order tentative = departure(2);
  EXPECT_EQ(answer(tentative).request,
            (drain::StopStepRequest{Order::Kind::kTentative, 2, 10, true}));
  answer(event(Reply::Kind::kAccepted, 2));
  EXPECT_EQ(answer(event(Reply::Kind::kWaiting, 2)).reply->kind, Reply::Kind::kWaiting);
  EXPECT_EQ(answer(tentative).reply->kind, Reply::Kind::kWaiting) << "repeated";
  const auto found = answer(order(Order::Kind::kRelease, 2, 10));
  EXPECT_EQ(found.leaves_at, 10);
  EXPECT_EQ(found.request, (drain::StopStepRequest{Order::Kind::kCommit, 2, 10}));
  EXPECT_EQ(answer(order(Order::Kind::kRelease, 2, 10)).leaves_at, std::nullopt);
}

TEST_F(DrainMemberTest, NodeWithoutWorkersWaitsAtOnceWhereANodeLeaves) {
  const Order tentative = departure(2);
  end_worker(0);
  end_worker(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answer(tentative).reply->kind, Reply::Kind::kWaiting);
  }
}

TEST_F(DrainMemberTest, DoesNotWaitAtARefusedStep) {
  answer(order(Order::Kind::kTentative, 2, 10));
  answer(event(Reply::Kind::kRefused, 2));
  EXPECT_EQ(answer(event(Reply::Kind::kWaiting, 2)).reply, std::nullopt);
}

TEST_F(DrainMemberTest, RepliesForWorkersThatAreGone) {
  answer(order(Order::Kind::kTentative, 2, 10));
  answer(event(Reply::Kind::kAccepted, 2));
  answer(order(Order::Kind::kCommit, 2, 10));
  end_worker(0);
  end_worker(1);
  auto ended = event(Reply::Kind::kEnded, 2);
  ended.stopped = 2;
  ended.first_stop = ended.last_stop = 10;
  answer(ended);
  EXPECT_TRUE(member_.is_reached());
  const auto steps = answer(order(Order::Kind::kAsk, 1)).reply;
  EXPECT_TRUE(steps->is_committed);
  const auto again = answer(order(Order::Kind::kCommit, 1, 10)).reply;
  EXPECT_EQ(again->kind, Reply::Kind::kEnded);
  EXPECT_EQ(again->proposal, 1U);
  EXPECT_EQ(again->stopped, 2);
}

}  // namespace
}  // namespace elastic::core
