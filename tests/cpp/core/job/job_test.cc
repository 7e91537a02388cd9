// What the parts of a job do to each other: rendezvous, gate, judge of hangs, agreed step, history.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/job/job_fixture.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(JobTest, AnAgreedStepThatIsReachedEndsTheJobInTheSameCall) {
  (void)begin_round();
  const auto closed = all<rdzv::Closed>(stop_at_a_step());
  ASSERT_EQ(closed.size(), 2U);
  EXPECT_EQ(closed[0].result->exit_code, kExitStoppedAtStep);
  EXPECT_THAT(closed[0].result->message, HasSubstr("stopped at step 11 on every rank"));
  EXPECT_TRUE(job_.is_over());
}

TEST_F(JobTest, ANodeReceivesItsRoundBeforeAnOrderOfIt) {
  (void)join(0);
  (void)step(job_event::Noticed{node(0), {seconds(100), "SIGTERM on node0"}});
  bool has_round[2] = {};
  int orders = 0;
  for (const JobAction& action : join(1)) {
    const auto* one = std::get_if<RendezvousAction>(&action);
    const auto* round = one == nullptr ? nullptr : std::get_if<rdzv::Round>(one);
    if (round != nullptr) has_round[round->to.low] = true;
    const auto* sent = std::get_if<drain_action::Send>(&action);
    if (sent == nullptr) continue;
    EXPECT_TRUE(has_round[sent->to.low]) << sent->to.low;
    ++orders;
  }
  EXPECT_EQ(orders, 2);
}

TEST_F(JobTest, ARoundThatIsHeldHasNoStacksAndNoSteps) {
  job_.gate().keep_at(RecordKeeper::kSuccession);
  const auto first = job_.take_proposal();
  std::vector<JobAction> actions;
  job_.in_force(first->number, now_, &actions);
  EXPECT_THAT(all<rdzv::Round>(begin_round()), IsEmpty());
  const auto proposal = job_.take_proposal();
  ASSERT_TRUE(proposal);
  EXPECT_EQ(all<hang_action::Reply>(step(hang_event::Requested{7})).at(0).text, hang::kNoRound);

  job_.in_force(proposal->number, now_, &actions);
  EXPECT_EQ(all<rdzv::Round>(actions).size(), 2U);
  EXPECT_EQ(all<hang_action::Ask>(step(hang_event::Requested{8})).size(), 1U);
}

TEST_F(JobTest, TheStopOfAJobIsHeldLikeEveryDecision) {
  (void)begin_round();
  job_.gate().keep_at(RecordKeeper::kSuccession);
  EXPECT_THAT(all<rdzv::Closed>(stop_at_a_step()), IsEmpty());
  EXPECT_TRUE(job_.is_over());
  std::vector<JobAction> actions;
  job_.in_force(job_.take_proposal()->number, now_, &actions);
  EXPECT_EQ(all<rdzv::Closed>(actions).size(), 2U);
}

TEST_F(JobTest, ARankThatRunsLongAfterOthersHaveExitedEndsTheJob) {
  (void)begin_round();
  const std::uint64_t round = job_.rendezvous().record().round;
  (void)step(hang_event::Finished{{.round = round, .rank = 0, .limit = seconds(30)}});
  now_ += seconds(30);
  (void)step(rdzv::Heartbeat{node(0)});
  (void)step(rdzv::Heartbeat{node(1)});
  EXPECT_EQ(all<hang_action::Ask>(step(rdzv::Tick{})).size(), 1U);
  now_ += kStacksTimeout;
  const auto closed = all<rdzv::Closed>(step(rdzv::Tick{}));
  ASSERT_EQ(closed.size(), 2U);
  EXPECT_EQ(closed[0].result->exit_code, kExitPartial);
}

TEST_F(JobTest, ANoticeKeepsTheRoundFromGrowing) {
  settings_.min_nodes = 1;
  settings_.settle = settings_.last_call_timeout = Duration::zero();
  job_ = Job("job", settings_, now_, Duration::zero());
  (void)join(0);
  (void)step(rdzv::Tick{});
  ASSERT_EQ(job_.rendezvous().record().round, 1U);
  (void)step(job_event::Noticed{node(0), {seconds(100), "SIGTERM on node0"}});
  (void)join(1);
  (void)step(rdzv::Heartbeat{node(0)});
  EXPECT_THAT(all<rdzv::Restart>(step(rdzv::Tick{})), IsEmpty());
}

TEST_F(JobTest, ANodeThatLeavesIsNotWaitedForByTheOthers) {
  (void)begin_round();
  (void)progress(0, 5);
  (void)step(hang_event::Requested{1});
  hang::NodeStacks stacks;
  stacks.request = 1;
  (void)step(hang_event::StacksReceived{node(0), stacks});
  const auto replies = all<hang_action::Reply>(step(rdzv::Leave{node(1), "it was stopped"}));
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].observer, 1U);
}

TEST_F(JobTest, APartialExitThatANodesLeaveConfirmsIsTheEndOfTheJob) {
  (void)begin_round();
  const std::uint64_t round = job_.rendezvous().record().round;
  (void)step(hang_event::Finished{{.round = round, .rank = 0, .limit = seconds(1)}});
  now_ += seconds(1);
  (void)step(job_event::WatchTick{});
  hang::NodeStacks stacks;
  stacks.request = 1;
  stacks.groups = {{.ranks = {0}, .label = "in poll (train.py:3)", .text = "poll"}};
  (void)step(hang_event::StacksReceived{node(0), stacks});
  const auto closed = all<rdzv::Closed>(step(rdzv::Leave{node(1), "it was stopped"}));
  ASSERT_FALSE(closed.empty());
  EXPECT_EQ(closed[0].result->exit_code, kExitPartial);
}

TEST_F(JobTest, TheResultOfTheGenerationBeforeEndsNothingOfThisOne) {
  const auto rounds = all<rdzv::Round>(begin_round());
  end();
  rdzv::Join next{{}, two_nodes()};
  for (const int index : {2, 3}) {
    next.node.id = node(index);
    (void)step(next);
  }
  ASSERT_EQ(job_.rendezvous().record().generation, 2U);
  (void)progress(2, 5);
  const rdzv::Round& held = rounds.at(0);
  rdzv::Resume old{{}, two_nodes(), rdzv::NodePhase::kWorking, {}, {}};
  old.node.id = held.to;
  old.node.name = "node0_7";
  old.last = HeldRound{.record = *held.record, .group_rank = held.own.group_rank};
  EXPECT_EQ(all<rdzv::Closed>(step(old)).size(), 1U);
  EXPECT_TRUE(job_.hangs().pace());  // the round is still judged
}

TEST_F(JobTest, ANodeThatIsNotOfTheJobCannotStopIt) {
  (void)begin_round();
  EXPECT_THAT(step(job_event::Noticed{node(9), {{}, "a stop of the job before"}}), IsEmpty());
  now_ += seconds(3);
  (void)step(rdzv::Tick{});
  EXPECT_FALSE(job_.is_over());
  EXPECT_EQ(job_.describe_drain(), "");
}

TEST_F(JobTest, AFailureWithoutARestartIsTheResultThoughTheStopComesFirst) {
  (void)begin_round();
  (void)step(job_event::Noticed{node(0), {seconds(3), "SIGTERM on node0"}});
  FailureReport failure;
  failure.rank = 1;
  failure.exit_code = 5;
  failure.message = "exited with code 5";
  (void)step(rdzv::Failed{node(1), 1, failure});
  ASSERT_FALSE(job_.is_over());  // node0 still stops its workers
  now_ += seconds(3);
  (void)step(rdzv::Tick{});
  ASSERT_TRUE(job_.is_over());
  EXPECT_EQ(job_.rendezvous().result()->exit_code, 5);
}

// A coordinator that takes over knows the round only by its nodes.
class SucceedingJobTest : public JobTest {
 protected:
  void take_over(rdzv::NodePhase phase) {
    const std::string state = job_.rendezvous().encode();
    const RoundRecord record = job_.rendezvous().record();
    job_ = Job("job", settings_, now_, Duration::zero());
    ASSERT_TRUE(job_.restore(state, now_).ok());
    for (const int index : {0, 1}) {
      rdzv::Resume resume{{}, settings_, phase, {}, {}};
      resume.node.id = node(index);
      resume.last = HeldRound{.record = record, .group_rank = index};
      (void)step(resume);
    }
  }
};

TEST_F(SucceedingJobTest, TheNextJobOfTheIdCanBeStopped) {
  (void)begin_round();
  take_over(rdzv::NodePhase::kWorking);
  end();
  for (const int index : {2, 3}) (void)join(index);
  ASSERT_EQ(job_.rendezvous().record().generation, 2U);
  EXPECT_EQ(order(step(job_event::Noticed{node(2), {seconds(100), "SIGTERM"}})).kind,
            drain::Order::Kind::kAsk);
}

// The step is committed, and the ranks have saved their state for longer than the limit of a hang.
// The last node resumes when the judge would begin: the coordinator has not asked for the step yet.
TEST_F(SucceedingJobTest, RanksThatSaveTheirStateDoNotHang) {
  (void)begin_round();
  const std::string state = job_.rendezvous().encode();
  const RoundRecord record = job_.rendezvous().record();
  job_ = Job("job", settings_, now_, Duration::zero());
  ASSERT_TRUE(job_.restore(state, now_).ok());
  const Instant judged_from = now_ + job_.rendezvous().takeover_limit();
  std::vector<JobAction> asked;
  for (const int index : {0, 1}) {
    rdzv::Resume resume{{}, settings_, rdzv::NodePhase::kWorking, {}, {}};
    resume.node.id = node(index);
    resume.last = HeldRound{.record = record, .group_rank = index};
    asked = step(resume);
    (void)step(job_event::Noticed{node(index), {seconds(100), "SIGTERM on node0"}});
    hang::NodeProgress saving;
    saving.round = record.round;
    saving.reporting = 1;
    saving.newest = saving.oldest = 11;
    saving.slowest_rank = index;
    saving.idle = saving.slowest_idle = seconds(600);
    saving.limit = seconds(5);
    (void)step(job_event::Progressed{node(index), saving});
    while (index == 0 && now_ < judged_from - milliseconds(1)) {
      now_ = std::min(now_ + seconds(1), judged_from - milliseconds(1));
      (void)step(rdzv::Heartbeat{node(0)});
      (void)step(rdzv::Tick{});
    }
  }
  now_ = judged_from;
  for (const int index : {0, 1}) (void)step(rdzv::Heartbeat{node(index)});
  EXPECT_THAT(all<hang_action::Ask>(step(rdzv::Tick{})), IsEmpty());
  now_ += milliseconds(1);
  drain::Reply committed{.round = record.round, .proposal = order(asked).proposal};
  committed.reporting = 1;
  committed.newest = committed.held = 11;
  committed.is_committed = true;
  (void)step(job_event::StopReplied{node(0), committed});
  const auto again = step(job_event::StopReplied{node(1), committed});
  ASSERT_EQ(order(again).kind, drain::Order::Kind::kCommit);
  (void)both_reply(order(again), drain::Reply::Kind::kReached);
  for (int i = 0; i < 100; ++i) {
    now_ += seconds(1);
    for (const int index : {0, 1}) (void)step(rdzv::Heartbeat{node(index)});
    ASSERT_THAT(all<hang_action::Ask>(step(rdzv::Tick{})), IsEmpty());
  }
}

TEST_F(JobTest, TheNextJobOfTheIdCanBeStoppedWhileItForms) {
  (void)begin_round();
  end();
  (void)join(2);
  const auto requested = step(job_event::DrainRequested{1, {seconds(100), "asked"}, {}});
  EXPECT_THAT(all<drain_action::Inform>(requested), IsEmpty());
  const auto began = join(3);
  ASSERT_EQ(job_.rendezvous().record().generation, 2U);
  EXPECT_EQ(order(began).kind, drain::Order::Kind::kAsk);
}

TEST_F(JobTest, ANoticeWhileTheNextRoundWaitsForANodeEndsTheJobAtOnce) {
  const JobSettings settings = [&] {
    JobSettings with = two_nodes();
    with.max_restarts = 3;
    return with;
  }();
  settings_ = settings;
  job_ = Job("job", settings, now_, Duration::zero());
  (void)begin_round();
  (void)step(rdzv::Leave{node(1), "it was stopped"});
  (void)step(rdzv::Gone{node(0), 1});
  (void)join(0, 1);
  ASSERT_FALSE(job_.is_over());
  const auto closed =
      all<rdzv::Closed>(step(job_event::Noticed{node(0), {seconds(50), "SIGTERM on node0"}}));
  ASSERT_EQ(closed.size(), 1U);
  EXPECT_EQ(closed[0].result->exit_code, 128 + 15);
  EXPECT_THAT(closed[0].result->message, HasSubstr("no rank was running"));
}

TEST_F(JobTest, ANodeThatANoticeEndsIsNotALossToTheOthers) {
  settings_.on_loss = LossPolicy::kFail;
  job_ = Job("job", settings_, now_, Duration::zero());
  (void)begin_round();
  (void)step(job_event::Noticed{node(1), {seconds(50), "SIGTERM on node1"}});
  const auto closed = all<rdzv::Closed>(step(rdzv::Leave{node(1), "stopped by signal 15"}));
  ASSERT_FALSE(closed.empty());
  EXPECT_EQ(closed[0].result->exit_code, 128 + 15);
  EXPECT_THAT(closed[0].result->message, HasSubstr("node1_7 left before a step was agreed on"));
}

TEST_F(SucceedingJobTest, ObserversSeeTheNodeThatCoordinatesNow) {
  (void)begin_round();
  const std::string state = job_.rendezvous().encode();
  job_ = Job("job", settings_, now_, Duration::zero());
  ASSERT_TRUE(
      job_.succeed(state, {.term = 2, .successor = node(1), .lost_incumbent = {}}, now_).ok());
  const auto nodes = describe_nodes(job_.rendezvous(), now_);
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_FALSE(nodes[0].hosts_coordinator);
  EXPECT_TRUE(nodes[1].hosts_coordinator);
}

TEST_F(SucceedingJobTest, ARequestThatNoNodeKnowsDoesNotKeepTheJobFromGrowing) {
  settings_.max_nodes = 3;
  settings_.settle = settings_.last_call_timeout = Duration::zero();
  job_ = Job("job", settings_, now_, Duration::zero());
  (void)join(0);
  (void)step(job_event::DrainRequested{1, {seconds(100), "asked"}, {}});
  (void)join(1);
  take_over(rdzv::NodePhase::kWorking);
  now_ += seconds(2);
  (void)step(rdzv::Tick{});
  EXPECT_EQ(all<rdzv::Restart>(join(2)).size(), 2U);
}

TEST_F(JobTest, AnObserverHearsWhyNothingIsStopped) {
  const drain::Notice notice{seconds(10), "asked"};
  (void)begin_round();
  EXPECT_EQ(answer_to_observer({1, notice, "node9"}), "no node of the round is node9");
  close();
  EXPECT_EQ(answer_to_observer({1, notice, {}}), hang::kNoRound);
  JobSettings settings = two_nodes();
  settings.min_nodes = settings.max_nodes = 1;
  job_ = Job("job", settings, now_, Duration::zero());
  EXPECT_THAT(answer_to_observer({1, notice, "node0"}), HasSubstr("one node"));
}

// A spare whose session is closed may be lost.
TEST_F(JobTest, ANodeStaysIfItsReplacementIsSuspect) {
  (void)begin_round();
  (void)join(2);
  (void)step(rdzv::SessionLost{node(2), {}});
  const auto asked = step(job_event::DrainRequested{1, {seconds(10), "asked"}, "node1"});
  const auto answered = all<drain_action::Inform>(both_can_continue(order(asked)));
  ASSERT_EQ(answered.size(), 1U);
  EXPECT_FALSE(answered[0].is_agreed);
  EXPECT_THAT(answered[0].text, HasSubstr("needs 2 nodes, and 1 would be left"));
}

TEST_F(JobTest, ANodeThatIsBackAfterItsDepartureWasRefusedStays) {
  settings_.min_nodes = 1;
  job_ = Job("job", settings_, now_, Duration::zero());
  (void)begin_round();
  const drain::Notice notice{seconds(100), "asked"};
  const auto asked = step(job_event::DrainRequested{1, notice, "node1"});
  const auto proposed = both_can_continue(order(asked));
  ASSERT_EQ(order(proposed).kind, drain::Order::Kind::kTentative);
  (void)step(rdzv::SessionLost{node(1), {}});
  const auto lost = step(rdzv::ProcessEnded{node(1)});
  EXPECT_EQ(all<drain_action::Inform>(lost).size(), 1U);
  const auto round = job_.rendezvous().record().round;
  (void)join(1, round);
  (void)step(rdzv::Gone{node(0), round});
  (void)join(0, round);
  ASSERT_EQ(job_.rendezvous().record().nodes, 2);
  drain::Notice repeated = notice;
  repeated.departure = drain::Departure{{node(1)}, false};
  const auto again = step(job_event::Noticed{node(0), repeated});
  const auto released = both_can_continue(order(again));
  for (const auto& sent : all<drain_action::Send>(released)) {
    EXPECT_NE(sent.order.kind, drain::Order::Kind::kTentative);
  }
}

// A third node waits. The first two report steps.
class GrowingJobTest : public JobTest {
 protected:
  GrowingJobTest() {
    settings_.max_nodes = 3;
    settings_.settle = settings_.last_call_timeout = Duration::zero();
    job_ = Job("job", settings_, now_, Duration::zero());
    (void)join(0);
    (void)begin_round();
  }
  // The third one has joined, and the ranks are to wait at the step of this order.
  drain::Order hold() {
    (void)progress(0, 10);
    (void)progress(1, 10);
    auto proposed = both_can_continue(order(join(2)), drain::Reply::Kind::kSteps);
    (void)both_can_continue(order(proposed), drain::Reply::Kind::kAccepted);
    return order(proposed);
  }
};

TEST_F(GrowingJobTest, TheRoundEndsForAnotherNodeWhenEveryRankWaitsAtAStep) {
  const drain::Order tentative = hold();
  EXPECT_EQ(job_.rendezvous().phase(), RendezvousPhase::kRunning);
  EXPECT_THAT(job_.rendezvous().describe(now_), HasSubstr("1 more node will be admitted when"));
  const auto ended = all<rdzv::Restart>(both_can_continue(tentative, drain::Reply::Kind::kWaiting));
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].cause, rdzv::RestartCause::kGrowth);
  EXPECT_EQ(job_.describe_drain(), "");
}

TEST_F(GrowingJobTest, RanksThatWaitForNodesThatJoinDoNotHang) {
  const drain::Order tentative = hold();
  (void)progress(0, 11, seconds(5));
  now_ += seconds(4);
  (void)progress(1, 11, seconds(5));
  (void)both_can_continue(tentative, drain::Reply::Kind::kWaiting);
  for (int i = 0; i < 60; ++i) {  // the new node starts its workers
    now_ += seconds(1);
    for (const int index : {0, 1, 2}) (void)step(rdzv::Heartbeat{node(index)});
    ASSERT_THAT(all<hang_action::Ask>(step(rdzv::Tick{})), IsEmpty());
  }
}

TEST_F(GrowingJobTest, TheRoundEndsAtOnceIfARankReportsNoStep) {
  (void)progress(0, 10);
  const auto actions = join(2);
  EXPECT_THAT(all<drain_action::Send>(actions), IsEmpty());
  EXPECT_EQ(all<rdzv::Restart>(actions).size(), 2U);
}

TEST_F(GrowingJobTest, TheRanksGoOnIfTheNodeThatWaitedHasGone) {
  (void)hold();
  const auto actions = step(rdzv::Leave{node(2), "it was stopped"});
  EXPECT_THAT(all<rdzv::Restart>(actions), IsEmpty());
  EXPECT_EQ(order(actions).kind, drain::Order::Kind::kWithdraw);
  EXPECT_EQ(job_.describe_drain(), "");
}

TEST_F(GrowingJobTest, ANodeThatIsSuspectWhenTheRanksWaitIsAdmittedWhenItHasResumed) {
  const drain::Order tentative = hold();
  (void)step(rdzv::SessionLost{node(2), {}});
  const auto actions = both_can_continue(tentative, drain::Reply::Kind::kWaiting);
  EXPECT_THAT(all<rdzv::Restart>(actions), IsEmpty());
  EXPECT_EQ(order(actions).kind, drain::Order::Kind::kWithdraw);
  rdzv::Resume resume;
  resume.settings = settings_;
  resume.node.id = node(2);
  const auto asked = step(resume);
  const auto proposed = both_can_continue(order(asked), drain::Reply::Kind::kSteps);
  (void)both_can_continue(order(proposed), drain::Reply::Kind::kAccepted);
  const auto ended = both_can_continue(order(proposed), drain::Reply::Kind::kWaiting);
  EXPECT_EQ(all<rdzv::Restart>(ended).size(), 2U);
}

TEST_F(GrowingJobTest, ARankThatDoesNotWaitEndsTheWaitOfTheOthersAndTheReasonIsShown) {
  const auto actions = reply(1, hold(), drain::Reply::Kind::kRefused);
  EXPECT_EQ(order(actions).kind, drain::Order::Kind::kWithdraw);
  const auto ended = all<rdzv::Restart>(actions);
  ASSERT_EQ(ended.size(), 2U);
  const char* const reason =
      "1 more node has joined, without an agreed step: a rank has passed the step";
  EXPECT_EQ(ended[0].reason, reason);
  EXPECT_THAT(job_.rendezvous().describe(now_), HasSubstr(reason));
}

// The ranks go on to another step.
TEST_F(GrowingJobTest, ARefusedDepartureDoesNotEndTheRound) {
  const drain::Order tentative = hold();
  for (const char* name : {"node0", "node1"}) {
    (void)step(job_event::DrainRequested{1, {seconds(100), "asked"}, name});
  }
  const auto asked = both_can_continue(tentative, drain::Reply::Kind::kWaiting);
  const auto given_up = both_can_continue(order(asked), drain::Reply::Kind::kSteps);
  EXPECT_EQ(all<drain_action::Inform>(given_up).size(), 2U);
  EXPECT_THAT(all<rdzv::Restart>(given_up), IsEmpty());
  EXPECT_EQ(order(given_up).kind, drain::Order::Kind::kAsk);
}

TEST_F(GrowingJobTest, AStopOfTheWholeJobTakesPrecedence) {
  (void)hold();
  const auto asked = step(job_event::Noticed{node(0), {seconds(100), "SIGTERM on node0"}});
  const auto proposed = both_reply(order(asked), drain::Reply::Kind::kSteps);
  const auto committed = both_reply(order(proposed), drain::Reply::Kind::kAccepted);
  (void)both_reply(order(committed), drain::Reply::Kind::kEnded);
  ASSERT_TRUE(job_.is_over());
  EXPECT_EQ(job_.rendezvous().result()->exit_code, kExitStoppedAtStep);
}

TEST_F(GrowingJobTest, ALostMemberEndsTheRoundBeforeTheStep) {
  (void)hold();
  (void)step(rdzv::SessionLost{node(1), {}});
  (void)step(rdzv::ProcessEnded{node(1)});
  EXPECT_EQ(job_.rendezvous().phase(), RendezvousPhase::kForming);
  EXPECT_EQ(job_.describe_drain(), "");
}

// ---- Hosts that are excluded meanwhile. The third node could take their place.

TEST_F(GrowingJobTest, AHostIsExcludedAtTheStepAtWhichEveryRankWaits) {
  const drain::Order tentative = hold();
  const auto excluded = step(job_event::HostRequested{1, "node1", "ann: fan", false});
  EXPECT_THAT(all<rdzv::Restart>(excluded), IsEmpty());
  const auto ended = all<rdzv::Restart>(both_can_continue(tentative, drain::Reply::Kind::kWaiting));
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_THAT(ended[0].reason, HasSubstr("1 node of an excluded host leaves"));
  const std::uint64_t round = job_.rendezvous().record().round;
  (void)join(0, round);
  const auto actions = join(1, round);
  ASSERT_EQ(all<rdzv::Refused>(actions).size(), 1U);
  EXPECT_EQ(all<rdzv::Refused>(actions)[0].to, node(1));
  EXPECT_EQ(all<rdzv::Round>(actions).size(), 2U);
}

TEST_F(GrowingJobTest, AnExclusionIsAnsweredWhenARecordWithItIsInForce) {
  job_.gate().keep_at(RecordKeeper::kFile);
  std::vector<JobAction> actions;
  job_.in_force(job_.take_proposal()->number, now_, &actions);
  const auto excluded = step(job_event::HostRequested{1, "node1", "ann: fan", false});
  EXPECT_TRUE(job_.hosts().is_excluded("node1"));
  EXPECT_THAT(all<gate_action::Inform>(excluded), IsEmpty());
  const auto at_the_file = job_.take_proposal();
  job_.gate().keep_at(RecordKeeper::kSuccession);
  actions.clear();
  job_.in_force(at_the_file->number, now_, &actions);
  EXPECT_THAT(actions, IsEmpty()) << "that keeper has the record no more";
  job_.in_force(job_.take_proposal()->number, now_, &actions);
  EXPECT_EQ(all<gate_action::Inform>(actions).size(), 1U);
}

TEST_F(GrowingJobTest, AnExclusionDoesNotEndTheRoundOfRanksThatStopAtAStep) {
  (void)progress(0, 10);
  (void)progress(1, 10);
  const auto asked = step(job_event::Noticed{node(0), {seconds(100), "SIGTERM on node0"}});
  (void)join(2);
  const auto excluded = step(job_event::HostRequested{1, "node1", "ann: fan", false});
  EXPECT_TRUE(job_.hosts().is_excluded("node1"));
  EXPECT_THAT(all<rdzv::Restart>(excluded), IsEmpty());
  EXPECT_THAT(all<rdzv::Restart>(step(rdzv::Tick{})), IsEmpty());
  const auto proposed = both_reply(order(asked), drain::Reply::Kind::kSteps);
  const auto committed = both_reply(order(proposed), drain::Reply::Kind::kAccepted);
  (void)both_reply(order(committed), drain::Reply::Kind::kEnded);
  ASSERT_TRUE(job_.is_over());
  EXPECT_EQ(job_.rendezvous().result()->exit_code, kExitStoppedAtStep);
}

TEST_F(GrowingJobTest, AnExclusionDoesNotEndARoundOfWhichANodeHasSucceeded) {
  const std::uint64_t round = job_.rendezvous().record().round;
  (void)step(rdzv::Done{node(1), round});
  (void)join(2);
  for (const char* host : {"node0", "node1"}) {
    const auto excluded = step(job_event::HostRequested{1, host, "ann: fan", false});
    EXPECT_TRUE(job_.hosts().is_excluded(host));
    EXPECT_THAT(all<rdzv::Restart>(excluded), IsEmpty()) << host;
  }
  EXPECT_THAT(all<rdzv::Restart>(step(rdzv::Tick{})), IsEmpty());
  (void)step(rdzv::Done{node(0), round});
  ASSERT_TRUE(job_.is_over());
  EXPECT_EQ(job_.rendezvous().result()->exit_code, 0);
}

// Nodes are exchanged, each within a minute of the one before.
TEST_F(GrowingJobTest, NodesThatLeaveAsPlannedDoNotDelayTheNext) {
  settings_.restart_backoff = seconds(1);
  settings_.settle = seconds(2);
  job_ = Job("job", settings_, now_, Duration::zero());
  for (const int index : {0, 1, 2}) (void)join(index);
  for (int leaver = 2; leaver < 6; ++leaver) {
    const auto round = job_.rendezvous().record().round;
    const drain::Notice notice{seconds(100), "asked"};
    (void)step(job_event::DrainRequested{1, notice, "node" + std::to_string(leaver)});
    (void)step(rdzv::Leave{node(leaver), "at step 10, as agreed"});
    for (const int index : {0, 1}) {
      (void)step(rdzv::Gone{node(index), round});
      (void)join(index, round);
    }
    ASSERT_EQ(job_.rendezvous().record().nodes, 2);
    EXPECT_EQ(all<rdzv::Restart>(join(leaver + 1)).size(), 2U);
    for (const int index : {0, 1}) {
      (void)step(rdzv::Gone{node(index), round + 1});
      (void)join(index, round + 1);
    }
    ASSERT_EQ(job_.rendezvous().record().nodes, 3);
  }
}

TEST_F(JobTest, ANodeIsFoundByItsNameItsHostAndItsAddress) {
  (void)begin_round();
  for (const char* text : {"node1_7", "node1", "10.0.0.1"}) {
    job_ = Job("job", two_nodes(), now_, Duration::zero());
    (void)begin_round();
    const auto actions = step(job_event::DrainRequested{1, {seconds(10), "asked"}, text});
    EXPECT_EQ(order(actions).kind, drain::Order::Kind::kAsk) << text;
  }
}

TEST_F(JobTest, TheOwnerEndsAJobWithoutANode) {
  close({.outcome = JobOutcome::kFailed, .message = "the record is too large"});
  ASSERT_TRUE(job_.is_over());
  EXPECT_EQ(job_.rendezvous().result()->message, "the record is too large");
}

TEST_F(JobTest, ANodeWithoutAnIdCannotKeepTheOwnerFromClosing) {
  rdzv::Join join{{}, two_nodes()};
  join.node.id = {};
  (void)step(join);
  (void)step(rdzv::SessionLost{{}, {}});
  now_ += seconds(3600);
  (void)step(rdzv::Tick{});
  EXPECT_FALSE(job_.rendezvous().has_node({}));
  close();
  EXPECT_TRUE(job_.is_over());
}

TEST_F(JobTest, NeighboursAreNeededByStepsOfTheRendezvousOfAFormingJob) {
  const rdzv::Heartbeat heartbeat{node(0)};
  const job_event::Progressed progress{node(0), {}};
  EXPECT_TRUE(job_.needs_neighbours(heartbeat));
  EXPECT_FALSE(job_.needs_neighbours(progress));
  (void)begin_round();
  EXPECT_FALSE(job_.needs_neighbours(heartbeat));
}

TEST_F(JobTest, TheNextTimeIsTheEarliestOfAllParts) {
  (void)begin_round();
  (void)step(rdzv::Tick{});
  const auto silence = job_.next_deadline();
  ASSERT_TRUE(silence);
  (void)progress(0, 5, milliseconds(100));
  EXPECT_EQ(job_.next_deadline(), now_ + milliseconds(100));
  EXPECT_LT(*job_.next_deadline(), *silence);
}

TEST_F(JobTest, AStallMovesTheTimersIfItWasCertainlyLong) {
  (void)begin_round();
  (void)progress(0, 5, seconds(30));
  (void)step(rdzv::ClockGap{.gap = seconds(9), .least = settings_.node_timeout / 4});
  EXPECT_EQ(job_.next_watch_deadline(), now_ + seconds(30));
  (void)step(rdzv::ClockGap{.gap = seconds(9), .least = settings_.node_timeout / 4 + Duration(1)});
  EXPECT_EQ(job_.next_watch_deadline(), now_ + seconds(39));
}

TEST_F(JobTest, WhatObserversSeeHasChangedAfterAFirstStepAndNotAfterAHeartbeat) {
  (void)begin_round();
  EXPECT_TRUE(job_.take_changed());
  EXPECT_FALSE(job_.take_changed());
  (void)step(rdzv::Heartbeat{node(0)});
  EXPECT_FALSE(job_.take_changed());
  (void)progress(0, 1);
  EXPECT_TRUE(job_.take_changed());
  EXPECT_TRUE(describe_job(&job_, now_).rounds.at(0).first_step);
}

TEST(JobFacts, WithoutAJobNoNodeHasJoined) {
  EXPECT_EQ(describe_job(nullptr, Instant(seconds(1))).description, "no node has joined");
}

}  // namespace
}  // namespace elastic::core
