// Nodes that leave at an agreed step while the others continue: every event of the coordinator's
// machine, and seeded schedules of real machines as in drain_property_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/drain/drain_machine.h"
#include "core/drain/drain_world.h"

namespace elastic::core {
namespace {

using drain::kNoStep;
using drain::Order;
using drain::Reply;
using drain_sim::Rank;
using drain_sim::SimNode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of three nodes with one rank each. Answers as its nodes do, unless it is told otherwise.
class DepartureTest : public ::testing::Test {
 protected:
  static constexpr int kNodes = 3;
  static NodeId node(int index) { return {1, static_cast<std::uint64_t>(index)}; }

  void step(const DrainEvent& event) { machine_.step(event, now_, &actions_); }
  void begin_round(std::uint64_t round, std::vector<int> members, Duration resume_limit = {}) {
    round_ = round;
    for (const int one : members) {
      step(drain_event::Began{node(one), round, static_cast<int>(members.size()),
                              "node" + std::to_string(one), resume_limit, min_nodes_});
    }
  }
  void leave(std::vector<int> nodes, bool stops_job = false, std::uint64_t observer = 0,
             Duration left = seconds(60)) {
    drain::Departure departure{{}, stops_job};
    for (const int one : nodes) departure.nodes.push_back(node(one));
    step(drain_event::Noticed{{left, "the test", departure}, observer, {}, spares_});
  }
  // Answers the orders until the machine waits for something else. Returns what they were.
  std::vector<std::string> serve(Reply::Kind last = Reply::Kind::kWaiting) {
    std::vector<std::string> seen;
    while (!actions_.empty()) {
      const std::vector<DrainAction> actions = std::exchange(actions_, {});
      for (const DrainAction& action : actions) {
        if (const auto* sent = std::get_if<drain_action::Send>(&action)) {
          note(&seen, name_of(*sent));
          last_order_ = sent->order;
          answer(*sent, last);
        } else if (const auto* news = std::get_if<drain_action::Announce>(&action)) {
          news_.push_back(news->text);
        } else if (const auto* told = std::get_if<drain_action::Inform>(&action)) {
          note(&seen, told->is_agreed ? "agreed" : "refused");
          told_ = told->text;
        } else {
          note(&seen,
               std::holds_alternative<drain_action::Close>(action) ? "close" : "hold growth");
        }
      }
    }
    return seen;
  }
  // Every worker of the node that runs waits at the step.
  void wait_at_step(int index) {
    const bool is_running = !finished_.contains(index);
    step(drain_event::Replied{node(index),
                              {.kind = Reply::Kind::kWaiting,
                               .round = 1,
                               .proposal = 2,
                               .reporting = is_running ? 1 : 0,
                               .can_continue = is_running},
                              spares_});
  }
  void wait(Duration duration) {
    const Instant end = now_ + duration;
    for (auto next = machine_.next_deadline(); next && *next <= end && actions_.empty();
         next = machine_.next_deadline()) {
      now_ = std::max(now_, *next);
      step(drain_event::Tick{});
    }
    now_ = std::max(now_, end);
  }

  DrainMachine machine_;
  Instant now_{seconds(1000)};
  std::vector<DrainAction> actions_;
  std::vector<std::string> news_;
  std::string told_;
  std::uint64_t round_ = 0;
  int min_nodes_ = 2;
  int spares_ = 0;
  int cannot_continue_ = -1;  // a node
  std::int64_t held_ = kNoStep;
  int released_ = -1;       // a node that an earlier coordinator has told to leave
  int silent_ = -1;         // a node whose rank reports no step
  std::set<int> finished_;  // nodes whose ranks have exited with 0
  Order last_order_;

 private:
  static void note(std::vector<std::string>* seen, const std::string& text) {
    if (seen->empty() || seen->back() != text) seen->push_back(text);
  }
  static std::string name_of(const drain_action::Send& sent) {
    switch (sent.order.kind) {
      case Order::Kind::kAsk: return "ask";
      case Order::Kind::kTentative: return "tentative " + std::to_string(sent.order.step);
      case Order::Kind::kWithdraw: return "withdraw";
      case Order::Kind::kCommit: return "commit " + std::to_string(sent.order.step);
      case Order::Kind::kRelease: break;
    }
    return "release " + std::to_string(sent.to.low) + " at " + std::to_string(sent.order.step);
  }
  void answer(const drain_action::Send& sent, Reply::Kind last) {
    const auto index = static_cast<int>(sent.to.low);
    Reply reply;
    reply.round = sent.order.round;
    reply.proposal = sent.order.proposal;
    reply.reporting = index == silent_ || finished_.contains(index) ? 0 : 1;
    reply.num_silent = index == silent_ ? 1 : 0;
    reply.newest = reply.oldest = 10;
    reply.held = held_;
    reply.is_committed = index == released_;
    reply.can_continue = index != cannot_continue_ && !finished_.contains(index);
    if (sent.order.kind == Order::Kind::kAsk) {
      step(drain_event::Replied{sent.to, reply, spares_});
    } else if (sent.order.kind == Order::Kind::kTentative && last != Reply::Kind::kSteps) {
      reply.kind = Reply::Kind::kAccepted;
      step(drain_event::Replied{sent.to, reply, spares_});
      reply.kind = last;
      if (last == Reply::Kind::kWaiting) step(drain_event::Replied{sent.to, reply, spares_});
    }
  }
};

TEST_F(DepartureTest, NodeIsReleasedWhenEveryRankWaits) {
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  EXPECT_THAT(serve(Reply::Kind::kAccepted), ElementsAre("ask", "tentative 11"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kHolding);
  EXPECT_EQ(machine_.describe(), "node1 is to leave at an agreed step (the test)");
  for (const int one : {0, 1, 2}) {
    EXPECT_THAT(serve(), IsEmpty());
    wait_at_step(one);
  }
  EXPECT_THAT(serve(), ElementsAre("release 1 at 11", "agreed"));
  EXPECT_EQ(told_,
            "node1 is to leave at step 11, which every rank has reached; the job continues with 2 "
            "nodes of this round");
  EXPECT_EQ(machine_.next_deadline(), now_ + kDrainReleaseTimeout);
  step(drain_event::Left{node(1)});
  step(drain_event::Ended{});
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
  EXPECT_THAT(serve(), IsEmpty()) << "the ranks wait until their round is over";
  begin_round(2, {0, 2});
  leave({1}, false, 8);  // sent again by a node that has resumed
  EXPECT_THAT(serve(), ElementsAre("refused"));
  EXPECT_EQ(told_, "the node is not a member of the round");
}

TEST_F(DepartureTest, SeveralNodesLeaveTogether) {
  begin_round(1, {0, 1, 2});
  min_nodes_ = 1;
  begin_round(2, {0, 1, 2});
  leave({1}, true);
  leave({2}, true);
  EXPECT_THAT(serve(), IsEmpty()) << "the signals of a scheduler are awaited";
  wait(kDrainGatherTime);
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "release 1 at 11", "release 2 at 11"));
  EXPECT_THAT(news_, Contains("node1 and 1 more are to leave at an agreed step (the test)"));
}

TEST_F(DepartureTest, JobThatCannotContinueStopsIfASignalWasGiven) {
  begin_round(1, {0, 1, 2});
  for (const int one : {0, 1, 2}) leave({one}, true);
  serve();
  wait(kDrainGatherTime);
  EXPECT_THAT(serve(), ElementsAre("ask", "hold growth", "tentative 11", "commit 11"));
  EXPECT_THAT(news_, Contains(HasSubstr("no node of the round would be left: every rank is to "
                                        "stop at an agreed step instead")));
}

TEST_F(DepartureTest, NodeStaysIfTheJobCannotContinueWithoutIt) {
  min_nodes_ = 3;
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw", "refused"));
  EXPECT_EQ(told_, "the job needs 3 nodes, and 2 would be left");
  spares_ = 1;
  cannot_continue_ = 2;
  leave({1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw", "refused"));
  EXPECT_EQ(told_, "the workers of node2 cannot continue in another round");
  cannot_continue_ = 1;
  leave({1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "release 1 at 11", "agreed"))
      << "those of a node that leaves need not continue";
}

TEST_F(DepartureTest, RankThatFinishesBeforeTheStepKeepsTheOthersTogether) {
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  serve(Reply::Kind::kAccepted);
  finished_ = {2};
  for (const int one : {0, 1, 2}) wait_at_step(one);
  EXPECT_THAT(serve(), ElementsAre("withdraw", "ask", "withdraw", "refused"));
  EXPECT_EQ(told_, "the workers of node2 cannot continue in another round");
}

TEST_F(DepartureTest, NodeWhoseWorkersHaveFinishedIsNotAwaitedAtAStep) {
  finished_ = {1};
  begin_round(1, {0, 1, 2});
  leave({1}, true, 7);
  serve();
  wait(kDrainGatherTime);
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw", "refused"));
  EXPECT_EQ(told_, "its workers have finished") << "and the job goes on";
}

TEST_F(DepartureTest, NodeWhoseWorkersHaveFinishedAwaitsNoSilentRank) {
  finished_ = {1};
  silent_ = 2;
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw", "refused"));
  EXPECT_EQ(told_, "its workers have finished");
}

TEST_F(DepartureTest, NodeThatFinishesBeforeTheStepHoldsTheOthersNoLonger) {
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  serve(Reply::Kind::kAccepted);
  finished_ = {1};
  for (const int one : {0, 1, 2}) wait_at_step(one);
  EXPECT_THAT(serve(), ElementsAre("withdraw", "ask", "withdraw", "refused"));
  EXPECT_EQ(told_, "its workers have finished");
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
}

// Of two nodes of a host one has finished before, and the other one does before the step.
TEST_F(DepartureTest, LastOfSeveralNodesThatFinishesBeforeTheStepHoldsTheOthersNoLonger) {
  min_nodes_ = 1;
  finished_ = {0};
  begin_round(1, {0, 1, 2});
  leave({0, 1}, false, 7);
  serve(Reply::Kind::kAccepted);
  finished_ = {0, 1};
  for (const int one : {0, 1, 2}) wait_at_step(one);
  EXPECT_THAT(serve(), ElementsAre("withdraw", "ask", "withdraw", "refused"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
}

TEST_F(DepartureTest, OnlyNodesWithWorkersAreReleased) {
  min_nodes_ = 1;
  finished_ = {0};
  begin_round(1, {0, 1, 2});
  leave({0, 1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "release 1 at 11", "agreed"));
  EXPECT_THAT(told_, HasSubstr("node1 is to leave at step 11"));
}

TEST_F(DepartureTest, SpareThatIsGoneAtTheStepIsMissed) {
  min_nodes_ = 3;
  spares_ = 1;
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  serve(Reply::Kind::kAccepted);
  spares_ = 0;
  for (const int one : {0, 1, 2}) wait_at_step(one);
  EXPECT_THAT(serve(), ElementsAre("withdraw", "ask", "withdraw", "refused"));
}

TEST_F(DepartureTest, DeadlineLetsEveryRankGoOn) {
  begin_round(1, {0, 1, 2});
  leave({1}, true, 7);
  serve();
  wait(kDrainGatherTime);
  serve(Reply::Kind::kAccepted);
  wait(seconds(60));
  EXPECT_THAT(serve(), ElementsAre("withdraw", "refused"));
  EXPECT_EQ(told_, "not every rank has reached step 11 when the deadline passed");
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
}

TEST_F(DepartureTest, StopOfTheWholeJobTakesPrecedence) {
  begin_round(1, {0, 1, 2});
  leave({1});
  serve(Reply::Kind::kAccepted);
  step(drain_event::Noticed{{seconds(60), "a signal"}});
  EXPECT_THAT(serve(), ElementsAre("withdraw", "ask", "tentative 11", "commit 11"));
  leave({2});
  EXPECT_THAT(serve(), IsEmpty()) << "it stops with the others";
}

TEST_F(DepartureTest, RoundThatEndsForAnotherReasonIsFollowedByAnotherQuestion) {
  begin_round(1, {0, 1, 2});
  leave({1});
  serve(Reply::Kind::kAccepted);
  step(drain_event::Left{node(2)});
  step(drain_event::Ended{});
  EXPECT_THAT(serve(), ElementsAre("withdraw", "ask"));
  min_nodes_ = 1;
  begin_round(2, {0, 1});
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "release 1 at 11"));
}

TEST_F(DepartureTest, NewCoordinatorRepeatsARelease) {
  held_ = 11;
  released_ = 1;
  leave({1}, false, 0, seconds(0));  // of a node that resumes first
  begin_round(1, {0, 1, 2}, seconds(6));
  EXPECT_THAT(serve(), ElementsAre("ask", "release 1 at 11"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kReleased);
}

TEST_F(DepartureTest, NewCoordinatorWithdrawsAStepThatNobodyWasReleasedAt) {
  held_ = 11;
  leave({1}, false, 0, seconds(0));
  begin_round(1, {0, 1, 2}, seconds(6));
  EXPECT_THAT(serve(Reply::Kind::kAccepted), ElementsAre("ask", "withdraw"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
}

TEST_F(DepartureTest, NoticeThatIsRepeatedLaterBeginsNothing) {
  min_nodes_ = 3;
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw", "refused"));
  EXPECT_EQ(last_order_.notice.left, Duration::zero()) << "which nodes repeat after a reconnect";
  news_.clear();
  spares_ = 1;
  leave({1}, true, 0, seconds(0));
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
  EXPECT_THAT(news_, IsEmpty());
}

TEST_F(DepartureTest, NoticeOfANodeThatMissedThatItIsGivenUpBeginsNothing) {
  min_nodes_ = 3;
  begin_round(1, {0, 1, 2});
  leave({1}, false, 7);
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw", "refused"));
  spares_ = 1;
  leave({1}, false, 0, seconds(50));  // of a node without a session meanwhile
  EXPECT_THAT(serve(), ElementsAre("ask", "withdraw"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
  leave({1}, false, 8);
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "release 1 at 11", "agreed"))
      << "it is asked for again";
}

TEST_F(DepartureTest, OldNoticeChangesNothingAboutTheStopOfTheJob) {
  begin_round(1, {0, 1, 2});
  step(drain_event::Noticed{{seconds(300), "a signal"}});
  leave({1}, false, 0, seconds(0));
  leave({2}, false, 0, seconds(5));
  wait(seconds(10));
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "commit 11"));
}

TEST_F(DepartureTest, NodeThatIsNoMemberIsNotCounted) {
  begin_round(1, {0, 1, 2});
  leave({1});
  leave({8, 9}, true);
  EXPECT_THAT(serve(), ElementsAre("ask", "tentative 11", "release 1 at 11"));
}

TEST_F(DepartureTest, NodeThatDoesNotLeaveHoldsTheOthersForAWhileOnly) {
  begin_round(1, {0, 1, 2});
  leave({1});
  serve();
  ASSERT_EQ(machine_.phase(), DrainPhase::kReleased);
  wait(kDrainReleaseTimeout);
  EXPECT_THAT(serve(), ElementsAre("withdraw"));
  EXPECT_EQ(machine_.phase(), DrainPhase::kIdle);
}

TEST_F(DepartureTest, SilentRanksAreNotAwaitedIfTheJobCannotContinue) {
  cannot_continue_ = silent_ = 2;
  begin_round(1, {0, 1, 2});
  leave({1}, true);
  serve();
  wait(kDrainGatherTime);
  EXPECT_THAT(serve(Reply::Kind::kAccepted), ElementsAre("ask"));
  wait(kDrainSilentGrace);
  EXPECT_THAT(serve(Reply::Kind::kAccepted),
              ElementsAre("ask", "hold growth", "tentative 11", "commit 11"));
}

// ---- Schedules.

class DepartingWorld : private drain_sim::RandomSchedule {
 public:
  explicit DepartingWorld(std::uint64_t seed) : RandomSchedule(seed) {
    nodes_.resize(2 + below(3));
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].id = {7, i};
    const std::size_t leaving = 1 + below(nodes_.size() - 1);
    for (std::size_t i = 0; i < leaving; ++i) leaving_.push_back(nodes_[i].id);
    renew_round();
  }

  // "" if the properties hold: a node leaves only where every rank of the round waits, and no rank
  // waits for ever.
  std::string run() {
    for (int turn = 0; turn < drain_sim::kScheduleTurnsMax; ++turn) {
      is_faulty_ = turn < drain_sim::kFaultyTurns;
      one_turn(turn);
      if (const auto step = std::exchange(released_at_, std::nullopt); step && !all_wait(*step)) {
        return "a node was released before every rank waited";
      }
      for (const SimNode& node : nodes_) {
        if (node.left_at && !all_wait(*node.left_at)) return "a rank went on without a node";
      }
      if (result_) return "the job was closed";
      if (has_notice_ && !is_faulty_ && (has_left() || all_exited())) return "";
      if (has_notice_ && !is_faulty_ && machine_.phase() == DrainPhase::kIdle && is_free())
        return "";
    }
    return describe();
  }
  // The first that leaves ends the round.
  bool has_left() const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [](const SimNode& node) { return node.left_at.has_value(); });
  }

 private:
  void renew_round() {
    const auto begin = static_cast<std::int64_t>(below(50));
    const auto last = begin + 1 + static_cast<std::int64_t>(below(2000));
    for (SimNode& node : nodes_) {
      const NodeId id = node.id;
      node = {};
      node.id = id;
      node.ranks.resize(1 + below(3));
      for (Rank& rank : node.ranks) rank.last_step = last;
    }
    released_at_.reset();
    begin_round(begin);
  }

  void give_notice() override { departure(seconds(60), leaving_, false); }
  void repeat_notice() override { give_notice(); }
  bool may_fail() const override { return !has_left(); }
  void fail_round(SimNode& /*node*/) override {
    feed(drain_event::Ended{});
    renew_round();
  }

  bool all_wait(std::int64_t step) const {
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        const bool is_waiting = rank.has_stored && rank.step == step && rank.tentative == step;
        if (!is_waiting && !rank.has_exited) return false;
      }
    }
    return true;
  }
  bool is_free() const {
    for (const SimNode& node : nodes_) {
      if (!node.orders.empty() || !node.requests.empty() || !node.is_connected) return false;
      for (const Rank& rank : node.ranks) {
        if (rank.tentative != kNoStep && !rank.has_exited) return false;
      }
    }
    return true;
  }

  std::vector<NodeId> leaving_;
};

TEST(DrainProperty, NodesLeaveOnlyWhereEveryRankWaits) {
  const char* const wanted = std::getenv("ELASTIC_DRAIN_SEEDS");
  const int seeds = wanted != nullptr ? std::atoi(wanted) : 150;
  int left = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    DepartingWorld world(static_cast<std::uint64_t>(seed));
    ASSERT_EQ(world.run(), "") << "seed " << seed;
    left += world.has_left() ? 1 : 0;
  }
  EXPECT_GT(left, seeds / 2);
}

}  // namespace
}  // namespace elastic::core
