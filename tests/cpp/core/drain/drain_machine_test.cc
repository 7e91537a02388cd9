// The agreed step: every event of the coordinator's machine.

#include "core/drain/drain_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/drain/drain_member.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using drain::Order;
using drain::Reply;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of two nodes with two ranks each.
class DrainMachineTest : public ::testing::Test {
 protected:
  static NodeId node(int index) { return {1, static_cast<std::uint64_t>(index)}; }

  void step(const DrainEvent& event) { machine_.step(event, now_, &actions_); }
  void begin_round(std::uint64_t round = 1) {
    for (int i = 0; i < 2; ++i) {
      step(drain_event::Began{node(i), round, 2, "node" + std::to_string(i)});
    }
    round_ = round;
  }
  static constexpr Duration kResumeLimit = seconds(6);
  void resumed(int index) {
    step(drain_event::Began{node(index), 1, 2, "node" + std::to_string(index), kResumeLimit});
  }
  void notice(Duration left = seconds(100), std::uint64_t observer = 0) {
    step(drain_event::Noticed{{left, "SIGTERM on node0"}, observer});
  }
  void progress(int index, std::int64_t newest, int reporting = 2) {
    hang::NodeProgress progress;
    progress.round = round_;
    progress.reporting = reporting;
    progress.newest = progress.oldest = newest;
    step(drain_event::Progressed{node(index), progress});
  }
  void wait(Duration duration) {
    const Instant end = now_ + duration;
    while (true) {
      const auto next = machine_.next_deadline();
      if (!next || *next > end) break;
      now_ = std::max(now_, *next);
      step(drain_event::Tick{});
    }
    now_ = end;
  }

  // Takes the order for this node; fails if there is none.
  Order take_order(int index) {
    for (auto it = actions_.begin(); it != actions_.end(); ++it) {
      const auto* sent = std::get_if<drain_action::Send>(&*it);
      if (sent == nullptr || sent->to != node(index)) continue;
      const Order order = sent->order;
      actions_.erase(it);
      return order;
    }
    ADD_FAILURE() << "no order for node " << index;
    return {};
  }
  Order take_orders(Order::Kind kind) {
    const Order first = take_order(0);
    const Order second = take_order(1);
    EXPECT_EQ(first, second);
    EXPECT_EQ(first.kind, kind);
    return first;
  }
  void reply(int index, Reply::Kind kind, const Order& order, std::int64_t newest = 10,
             int silent = 0) {
    Reply reply;
    reply.kind = kind;
    reply.round = order.round;
    reply.proposal = order.proposal;
    reply.reporting = newest < 0 ? 0 : 2 - silent;
    reply.newest = reply.oldest = newest;
    reply.num_silent = newest < 0 ? 2 : silent;
    if (silent > 0) reply.silent = {2 * index + 1};
    step(drain_event::Replied{node(index), reply});
  }
  void stopped(int index, Reply::Kind kind, const Order& order, std::int64_t at) {
    Reply reply;
    reply.kind = kind;
    reply.round = order.round;
    reply.proposal = order.proposal;
    reply.stopped = at < 0 ? 0 : 2;
    reply.first_stop = reply.last_stop = at;
    step(drain_event::Replied{node(index), reply});
  }
  // From the notice to the tentative step.
  Order propose(std::int64_t newest = 10) {
    begin_round();
    notice();
    const Order ask = take_orders(Order::Kind::kAsk);
    reply(0, Reply::Kind::kSteps, ask, newest);
    reply(1, Reply::Kind::kSteps, ask, newest - 1);
    return take_orders(Order::Kind::kTentative);
  }
  Order commit() {
    const Order tentative = propose();
    reply(0, Reply::Kind::kAccepted, tentative);
    reply(1, Reply::Kind::kAccepted, tentative);
    return take_orders(Order::Kind::kCommit);
  }
  std::vector<std::string> news() {
    std::vector<std::string> lines;
    for (const DrainAction& action : actions_) {
      if (const auto* news = std::get_if<drain_action::Announce>(&action)) {
        lines.push_back(news->text);
      }
    }
    actions_.clear();
    return lines;
  }
  JobResult take_result() {
    for (auto it = actions_.begin(); it != actions_.end(); ++it) {
      if (const auto* closed = std::get_if<drain_action::Close>(&*it)) {
        JobResult result = closed->result;
        actions_.erase(it);
        return result;
      }
    }
    ADD_FAILURE() << "the job is not closed";
    return {};
  }
  bool has_result() const {
    for (const DrainAction& action : actions_) {
      if (std::holds_alternative<drain_action::Close>(action)) return true;
    }
    return false;
  }

  Instant now_{seconds(1000)};
  std::uint64_t round_ = 1;
  DrainMachine machine_;
  std::vector<DrainAction> actions_;
};

TEST_F(DrainMachineTest, WithoutANoticeNothingIsSent) {
  begin_round();
  progress(0, 5);
  step(drain_event::Ended{});
  begin_round(2);
  step(drain_event::Left{node(0)});
  step(drain_event::Over{});
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(machine_.next_deadline(), std::nullopt);
}

TEST_F(DrainMachineTest, EveryRankStopsAtAStepAboveTheNewest) {
  const Order order = commit();
  EXPECT_EQ(order.step, 11);
  EXPECT_THAT(news(), ElementsAre(HasSubstr("(SIGTERM on node0), within 1 min 40 s"),
                                  "every rank stops at step 11"));
  EXPECT_THAT(machine_.describe(), HasSubstr("step 11"));
  stopped(0, Reply::Kind::kReached, order, 11);
  EXPECT_FALSE(has_result());
  stopped(1, Reply::Kind::kEnded, order, 11);
  EXPECT_THAT(news(), ElementsAre(HasSubstr("4 ranks stopped at step 11")));
  EXPECT_EQ(machine_.next_deadline(), std::nullopt) << "saving may take longer than the deadline";
  stopped(0, Reply::Kind::kEnded, order, 11);
  const JobResult result = take_result();
  EXPECT_EQ(result.outcome, JobOutcome::kClosed);
  EXPECT_EQ(result.exit_code, kExitStoppedAtStep);
  EXPECT_THAT(result.message, HasSubstr("stopped at step 11 on every rank, resumable"));
}

TEST_F(DrainMachineTest, RefusalDoublesTheMargin) {
  Order tentative = propose();
  reply(0, Reply::Kind::kAccepted, tentative);
  reply(1, Reply::Kind::kRefused, tentative, 11);
  tentative = take_orders(Order::Kind::kTentative);
  EXPECT_EQ(tentative.step, 11 + 2);
  reply(0, Reply::Kind::kRefused, tentative, 20);
  tentative = take_orders(Order::Kind::kTentative);
  EXPECT_EQ(tentative.step, 20 + 4);
  reply(0, Reply::Kind::kAccepted, tentative);
  reply(1, Reply::Kind::kAccepted, tentative);
  EXPECT_EQ(take_orders(Order::Kind::kCommit).step, 24);
}

TEST_F(DrainMachineTest, LateReplyToAReplacedProposalCountsForNothing) {
  const Order first = propose();
  reply(0, Reply::Kind::kRefused, first, 11);
  const Order second = take_orders(Order::Kind::kTentative);
  reply(0, Reply::Kind::kAccepted, second);
  reply(1, Reply::Kind::kAccepted, first);
  EXPECT_EQ(machine_.phase(), DrainPhase::kProposed);
}

TEST_F(DrainMachineTest, MissingReplyWithdrawsTheStepAndAsksAgain) {
  const Order tentative = propose();
  reply(0, Reply::Kind::kAccepted, tentative);
  wait(kDrainReplyTimeout);
  EXPECT_EQ(take_orders(Order::Kind::kWithdraw).step, drain::kNoStep);
  EXPECT_GT(take_orders(Order::Kind::kAsk).proposal, tentative.proposal);
}

TEST_F(DrainMachineTest, NoticeBeforeTheFirstStepWaitsForEveryRank) {
  begin_round();
  notice();
  Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, -1);
  reply(1, Reply::Kind::kSteps, ask, -1);
  EXPECT_EQ(machine_.phase(), DrainPhase::kAwaitSteps);
  EXPECT_THAT(news(),
              ElementsAre(HasSubstr("agreed step"), "waiting: no rank has reported a step"));
  wait(seconds(5));
  progress(1, 1, 1);
  ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 1);
  reply(1, Reply::Kind::kSteps, ask, 1, 1);
  EXPECT_THAT(news(), ElementsAre("waiting: rank 3 has reported no step"));
  wait(kDrainAskInterval);
  progress(1, 2, 2);
  ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 2);
  reply(1, Reply::Kind::kSteps, ask, 2);
  EXPECT_EQ(take_orders(Order::Kind::kTentative).step, 3);
}

TEST_F(DrainMachineTest, QuestionsHaveAPace) {
  begin_round();
  notice();
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, -1);
  reply(1, Reply::Kind::kSteps, ask, -1);
  actions_.clear();
  progress(0, 1, 1);
  progress(1, 1, 1);
  EXPECT_THAT(actions_, IsEmpty());
  wait(kDrainAskInterval);
  take_orders(Order::Kind::kAsk);
}

TEST_F(DrainMachineTest, RankThatNeverReportsIsLeftOutAndNamed) {
  begin_round();
  progress(0, 5, 1);
  wait(kDrainSilentGrace);
  notice();
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 7, 1);
  reply(1, Reply::Kind::kSteps, ask, 7);
  EXPECT_EQ(take_orders(Order::Kind::kTentative).step, 8);
  EXPECT_THAT(news(), ElementsAre(HasSubstr("agreed step"),
                                  HasSubstr("rank 1 has reported no step: the other ranks agree")));
}

TEST_F(DrainMachineTest, RanksThatHaveFinishedAreSatisfied) {
  begin_round();
  notice();
  const Order ask = take_orders(Order::Kind::kAsk);
  Reply finished;
  finished.round = 1;
  finished.proposal = ask.proposal;
  step(drain_event::Replied{node(0), finished});
  reply(1, Reply::Kind::kSteps, ask, 7);
  const Order tentative = take_orders(Order::Kind::kTentative);
  reply(0, Reply::Kind::kAccepted, tentative);
  reply(1, Reply::Kind::kAccepted, tentative);
  const Order order = take_orders(Order::Kind::kCommit);
  stopped(0, Reply::Kind::kEnded, order, -1);
  stopped(1, Reply::Kind::kEnded, order, 8);
  EXPECT_EQ(take_result().exit_code, kExitStoppedAtStep);
}

TEST_F(DrainMachineTest, JobWhoseRanksAllFinishBeforeTheStepSucceeds) {
  const Order order = commit();
  stopped(0, Reply::Kind::kEnded, order, -1);
  stopped(1, Reply::Kind::kEnded, order, -1);
  EXPECT_FALSE(has_result());
  step(drain_event::Over{});
  EXPECT_EQ(machine_.describe(), "");
}

TEST_F(DrainMachineTest, NodeThatLeavesWithdrawsTheStep) {
  propose();
  step(drain_event::Left{node(1)});
  EXPECT_EQ(take_order(0).kind, Order::Kind::kWithdraw);
  EXPECT_EQ(take_order(0).kind, Order::Kind::kAsk);
  step(drain_event::Ended{});
  EXPECT_EQ(machine_.phase(), DrainPhase::kAwaitRound);
}

TEST_F(DrainMachineTest, NodeThatIsLostBeforeItsRanksHaveExitedIsNoResumableStop) {
  for (const bool is_lost_first : {false, true}) {
    machine_ = {};
    const Order order = commit();
    const drain_event::Left left{node(1)};
    if (is_lost_first) step(left);
    stopped(0, Reply::Kind::kEnded, order, order.step);
    if (!is_lost_first) step(left);
    for (const DrainAction& action : std::exchange(actions_, {})) {
      EXPECT_FALSE(std::holds_alternative<drain_action::Close>(action)) << is_lost_first;
    }
    step(drain_event::Ended{});
    EXPECT_EQ(machine_.phase(), DrainPhase::kAwaitRound);
    actions_.clear();
  }
}

TEST_F(DrainMachineTest, NodeThatLeavesAfterItsRanksHaveExitedIsSatisfied) {
  const Order order = commit();
  stopped(1, Reply::Kind::kEnded, order, order.step);
  step(drain_event::Left{node(1)});
  actions_.clear();
  stopped(0, Reply::Kind::kEnded, order, order.step);
  ASSERT_FALSE(actions_.empty());
  const auto* const close = std::get_if<drain_action::Close>(&actions_.back());
  ASSERT_NE(close, nullptr);
  EXPECT_EQ(close->result.exit_code, kExitStoppedAtStep);
}

TEST_F(DrainMachineTest, RoundThatBeginsIsAskedAgain) {
  commit();
  step(drain_event::Ended{});
  EXPECT_THAT(news(), ::testing::Contains(HasSubstr(
                          "ends before every rank has stopped at step 11; asking again")));
  begin_round(2);
  EXPECT_EQ(take_orders(Order::Kind::kAsk).round, 2U);
}

TEST_F(DrainMachineTest, MarginIsTheRounds) {
  const Order refused = propose();
  reply(0, Reply::Kind::kRefused, refused, 11);
  EXPECT_EQ(take_orders(Order::Kind::kTentative).step, 11 + 2);
  step(drain_event::Ended{});
  begin_round(2);
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 20);
  reply(1, Reply::Kind::kSteps, ask, 20);
  EXPECT_EQ(take_orders(Order::Kind::kTentative).step, 20 + 1);
}

TEST_F(DrainMachineTest, NodeThatResumesReceivesTheOrderAgain) {
  const Order tentative = propose();
  step(drain_event::Began{node(1), 1, 2, "node1"});
  EXPECT_EQ(take_order(1), tentative);
  reply(0, Reply::Kind::kAccepted, tentative);
  reply(1, Reply::Kind::kAccepted, tentative);
  const Order order = take_orders(Order::Kind::kCommit);
  step(drain_event::Began{node(0), 1, 2, "node0"});
  EXPECT_EQ(take_order(0), order);
}

TEST_F(DrainMachineTest, NextCoordinatorCommitsWhatOneNodeHasSeenCommitted) {
  step(drain_event::Began{node(0), 1, 2, "node0"});
  notice();
  EXPECT_EQ(machine_.phase(), DrainPhase::kAwaitRound) << "a member has not resumed";
  step(drain_event::Began{node(1), 1, 2, "node1"});
  const Order ask = take_orders(Order::Kind::kAsk);
  Reply held;
  held.round = 1;
  held.proposal = ask.proposal;
  held.reporting = 2;
  held.newest = held.oldest = 40;
  held.held = 41;
  step(drain_event::Replied{node(0), held});
  held.is_committed = true;
  step(drain_event::Replied{node(1), held});
  EXPECT_EQ(take_orders(Order::Kind::kCommit).step, 41);
}

TEST_F(DrainMachineTest, NextCoordinatorWithdrawsWhatWasNotCommitted) {
  begin_round();
  notice();
  const Order ask = take_orders(Order::Kind::kAsk);
  Reply held;
  held.round = 1;
  held.proposal = ask.proposal;
  held.reporting = 2;
  held.newest = held.oldest = 41;
  held.held = 41;
  step(drain_event::Replied{node(0), held});
  step(drain_event::Replied{node(1), held});
  take_orders(Order::Kind::kWithdraw);
  EXPECT_EQ(take_orders(Order::Kind::kTentative).step, 42);
}

// The deadline has passed, and every rank may be saving its state at the committed step.
TEST_F(DrainMachineTest, NextCoordinatorStopsNoRankBeforeTheNodesHaveReplied) {
  resumed(0);
  notice(seconds(0));
  wait(kResumeLimit / 2);
  resumed(1);
  const Order ask = take_orders(Order::Kind::kAsk);
  Reply held;
  held.round = 1;
  held.proposal = ask.proposal;
  held.held = 41;
  held.is_committed = true;
  step(drain_event::Replied{node(0), held});
  step(drain_event::Replied{node(1), held});
  const Order commit = take_orders(Order::Kind::kCommit);
  wait(kDrainReplyTimeout / 2);
  stopped(0, Reply::Kind::kReached, commit, 41);
  stopped(1, Reply::Kind::kEnded, commit, 41);
  wait(seconds(1000));
  EXPECT_FALSE(has_result()) << "a rank saves";
  stopped(0, Reply::Kind::kEnded, commit, 41);
  EXPECT_EQ(take_result().exit_code, kExitStoppedAtStep);
}

TEST_F(DrainMachineTest, NextCoordinatorMayHearOfTheNoticeFromASpareFirst) {
  step(drain_event::Noticed{{seconds(0), "SIGTERM on spare"}, 0, kResumeLimit});
  wait(kResumeLimit);
  EXPECT_FALSE(has_result());
  resumed(0);
  resumed(1);
  take_orders(Order::Kind::kAsk);
}

TEST_F(DrainMachineTest, NextCoordinatorStopsTheRanksAtLastIfNoNodeHoldsAStep) {
  resumed(0);
  notice(seconds(0));
  resumed(1);
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 7);
  reply(1, Reply::Kind::kSteps, ask, 7);
  wait(milliseconds(1));
  EXPECT_EQ(take_result().exit_code, 128 + 15);
}

TEST_F(DrainMachineTest, NextCoordinatorWaitsForASilentNodeWithALimit) {
  resumed(0);
  notice(seconds(0));
  wait(kResumeLimit + kDrainReplyTimeout - milliseconds(1));
  EXPECT_FALSE(has_result());
  wait(milliseconds(1));
  EXPECT_THAT(take_result().message, HasSubstr("1 of 2 nodes are connected"));
}

// A done node that was lost with the coordinator was never connected here.
TEST_F(DrainMachineTest, MemberThatIsLostBeforeItResumesIsNotAwaited) {
  resumed(0);
  notice();
  EXPECT_EQ(machine_.phase(), DrainPhase::kAwaitRound);
  step(drain_event::Left{node(1), 1});
  EXPECT_EQ(machine_.phase(), DrainPhase::kAsking);
}

TEST_F(DrainMachineTest, DeadlineStopsTheJobAndSaysWhy) {
  begin_round();
  notice(seconds(20));
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, -1);
  reply(1, Reply::Kind::kSteps, ask, -1);
  wait(seconds(20));
  const JobResult result = take_result();
  EXPECT_EQ(result.exit_code, 128 + 15);
  EXPECT_THAT(result.message, HasSubstr("stopped without an agreed step (SIGTERM on node0): no "
                                        "rank has reported a step when the deadline passed"));
}

TEST_F(DrainMachineTest, DeadlineAfterTheCommitNamesTheNodesThatHaveNotStopped) {
  const Order order = commit();
  stopped(0, Reply::Kind::kReached, order, 11);
  wait(seconds(100));
  EXPECT_THAT(take_result().message, HasSubstr("the ranks on node1 have not stopped at step 11"));
}

// One long step, as a compilation or an evaluation is, says nothing about the next ones.
TEST_F(DrainMachineTest, LongStepsBeforeTheNoticeEndNoJob) {
  begin_round();
  for (int i = 1; i <= 5; ++i) {
    progress(0, i);
    progress(1, i);
    wait(seconds(60));
  }
  notice(seconds(30));
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 5);
  reply(1, Reply::Kind::kSteps, ask, 3);
  EXPECT_EQ(take_orders(Order::Kind::kTentative).step, 6);
  EXPECT_FALSE(has_result());
}

TEST_F(DrainMachineTest, ASecondNoticeCanOnlyShortenTheTime) {
  begin_round();
  notice(seconds(100));
  notice(seconds(500));
  notice(seconds(10));
  wait(seconds(10));
  EXPECT_TRUE(has_result());
}

TEST_F(DrainMachineTest, DifferentStepsAreNotReportedAsAgreed) {
  const Order order = commit();
  stopped(0, Reply::Kind::kEnded, order, 12);
  stopped(1, Reply::Kind::kEnded, order, 15);
  const JobResult result = take_result();
  EXPECT_EQ(result.exit_code, 128 + 15);
  EXPECT_THAT(result.message, HasSubstr("different steps, from 12 to 15"));
}

TEST_F(DrainMachineTest, ObserverReceivesOneAnswer) {
  begin_round();
  notice(seconds(100), 7);
  const Order ask = take_orders(Order::Kind::kAsk);
  reply(0, Reply::Kind::kSteps, ask, 5);
  reply(1, Reply::Kind::kSteps, ask, 5);
  const Order tentative = take_orders(Order::Kind::kTentative);
  actions_.clear();
  reply(0, Reply::Kind::kAccepted, tentative);
  reply(1, Reply::Kind::kAccepted, tentative);
  int answers = 0;
  for (const DrainAction& action : actions_) {
    if (const auto* answer = std::get_if<drain_action::Inform>(&action)) {
      ++answers;
      EXPECT_EQ(answer->observer, 7U);
      EXPECT_TRUE(answer->is_agreed);
    }
  }
  EXPECT_EQ(answers, 1);
  actions_.clear();
  step(drain_event::Over{});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(DrainMachineTest, ValuesOfBrokenWorkersDoNotOverflow) {
  begin_round();
  notice();
  const Order ask = take_orders(Order::Kind::kAsk);
  Reply wild;
  wild.round = 1;
  wild.proposal = ask.proposal;
  wild.reporting = 1;
  wild.newest = INT64_MAX;
  wild.oldest = INT64_MIN;
  step(drain_event::Replied{node(0), wild});
  reply(1, Reply::Kind::kSteps, ask, 5);
  EXPECT_GT(take_orders(Order::Kind::kTentative).step, 5);
}

}  // namespace
}  // namespace elastic::core
