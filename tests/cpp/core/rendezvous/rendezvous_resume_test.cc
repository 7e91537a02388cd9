// Sessions that resume, and coordinators that restart without state.

#include <gmock/gmock.h>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using rdzv::NodePhase;
using testing::HasSubstr;

JobSettings restarts(int min_nodes, int max_nodes, int max_restarts) {
  return with(nnodes(min_nodes, max_nodes), [&](JobSettings& s) { s.max_restarts = max_restarts; });
}

TEST(RendezvousResume, ASessionThatResumesInTimeChangesNothing) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass(40ms);
  const Sent sent = job.resume("b", NodePhase::kWorking);
  ASSERT_NE(job.action_to<rdzv::Resumed>(sent, "b"), nullptr);
  job.run(4s);
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousResume, MissedRoundIsResent) {
  Job job(nnodes(2, 2));
  job.join("a");
  const rdzv::Resume before = job.resume_of("a", NodePhase::kJoined);
  job.join("b");  // the round was sent on a closed session
  job.cut("a");
  const Sent sent = job.step(before);
  ASSERT_NE(job.action_to<rdzv::Round>(sent, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Round>(sent, "a")->record->round, 1u);
}

TEST(RendezvousResume, MissedRestartIsResent) {
  Job job(restarts(2, 2, 1));
  job.join_all({"a", "b"});
  job.fail("a");
  job.cut("b");
  const Sent sent = job.resume("b", NodePhase::kWorking);
  ASSERT_NE(job.action_to<rdzv::Restart>(sent, "b"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Restart>(sent, "b")->reason, "rank 0 on a exited with code 1");
}

TEST(RendezvousResume, ResumeReplaysMissedReports) {
  Job job(restarts(2, 2, 1));
  job.join_all({"a", "b"});
  job.cut("b");
  rdzv::Resume resume = job.resume_of("b", NodePhase::kWorking);
  resume.failure = FailureReport{0, 1, 9, "exited with code 9", job.now()};
  const Sent sent = job.step(resume);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  job.rejoin_all({"a", "b"});
  EXPECT_EQ(job.share("a").record->restarts, 1);

  job.cut("a");
  job.resume("a", NodePhase::kDone);
  job.cut("b");
  job.resume("b", NodePhase::kDone);
  EXPECT_TRUE(job.is_closed());
}

TEST(RendezvousResume, ALostJoinIsReplayed) {
  Job job(restarts(2, 2, 1));
  job.join_all({"a", "b"});
  job.fail("a");
  job.rejoin("a");
  job.cut("b");  // its Gone and its Join were lost with the session
  const Sent sent = job.resume("b", NodePhase::kJoined);
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
}

TEST(RendezvousResume, ResumingEvictedNodeIsNotified) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.run(6s, {"a"});
  const Sent sent = job.resume("b", NodePhase::kWorking);
  ASSERT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Waiting>(job.join("b"), "b"), nullptr) << "it may rejoin";
}

TEST(RendezvousResume, ForgottenWaitingNodeJoinsAgain) {
  Job job(nnodes(2, 2));
  job.join("a");
  job.run(6s);
  const Sent sent = job.resume("a", NodePhase::kJoined);
  EXPECT_NE(job.action_to<rdzv::Waiting>(sent, "a"), nullptr);
  EXPECT_EQ(job.join("b").count<rdzv::Round>(), 2);
}

TEST(RendezvousResume, ForgottenDoneNodeWaitsAtTheBarrierAgain) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.cut("a");
  job.pass_and_tick(50ms);
  const Sent sent = job.resume("a", NodePhase::kDone);
  EXPECT_NE(job.action_to<rdzv::Waiting>(sent, "a"), nullptr);
  EXPECT_EQ(job.done("b").count<rdzv::Closed>(), 2);
}

TEST(RendezvousResume, DoneOfAnEvictedNodeDoesNotCount) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.join("spare");
  job.cut("a");
  job.pass_and_tick(50ms);
  ASSERT_EQ(job.round(), 2u);
  EXPECT_NE(job.action_to<rdzv::Evicted>(job.resume("a", NodePhase::kDone), "a"), nullptr);
}

TEST(RendezvousResume, InconsistentResumeIsEvicted) {
  Job job(nnodes(2, 2));
  job.join("a");
  job.join("b");
  job.done("a");
  const Sent sent = job.resume("a", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Evicted>(sent, "a"), nullptr);
}

TEST(RendezvousResume, ClosedJobSendsItsResultOnResume) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.done("a");
  EXPECT_NE(job.action_to<rdzv::Closed>(job.resume("a", NodePhase::kDone), "a"), nullptr);
  job.cut("a");
  EXPECT_NE(job.action_to<rdzv::Closed>(job.resume("a", NodePhase::kDone), "a"), nullptr);
}

TEST(RendezvousResume, ImpossibleRoundIsRejected) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.restart_coordinator();
  for (const int rank : {-1, 2, 1 << 30}) {
    rdzv::Resume resume = job.resume_of("a", NodePhase::kWorking);
    resume.last->group_rank = rank;
    EXPECT_NE(job.action_to<rdzv::Refused>(job.step(resume), "a"), nullptr) << rank;
  }
  rdzv::Resume resume = job.resume_of("a", NodePhase::kWorking);
  resume.last->record.nodes = 1 << 30;
  EXPECT_NE(job.action_to<rdzv::Refused>(job.step(resume), "a"), nullptr);

  // Each would be counted on from there: no later join could be valid.
  resume = job.resume_of("a", NodePhase::kWorking);
  resume.last->record.round = std::uint64_t{1} << 61;
  EXPECT_NE(job.action_to<rdzv::Refused>(job.step(resume), "a"), nullptr);
  resume = job.resume_of("a", NodePhase::kWorking);
  resume.last->record.generation = 0xFFFFFFFF;
  EXPECT_NE(job.action_to<rdzv::Refused>(job.step(resume), "a"), nullptr);
  resume = job.resume_of("a", NodePhase::kWorking);
  resume.last->record.membership_changes = 0x7FFFFFFF;
  EXPECT_NE(job.action_to<rdzv::Refused>(job.step(resume), "a"), nullptr);
  EXPECT_EQ(job.round(), 0u);
}

TEST(RendezvousResume, TheRankOfAStaticJobIsGivenToOneNodeOnly) {
  Job job(with(nnodes(2, 2), [](JobSettings& s) { s.static_ranks = true; }));
  job.node("a").static_rank = 0;
  job.node("b").static_rank = 1;
  job.join_all({"a", "b"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  job.node("copy").static_rank = 1;
  job.join("copy");
  const Sent sent = job.resume("b", NodePhase::kWorking);
  ASSERT_NE(job.action_to<rdzv::Refused>(sent, "copy"), nullptr) << "b has it in a round";
  EXPECT_THAT(std::string(job.action_to<rdzv::Refused>(sent, "copy")->error.message()),
              HasSubstr("node_rank=1 was given to both copy and b"));
  EXPECT_NE(job.action_to<rdzv::Resumed>(sent, "b"), nullptr);
}

// "a" was done in the stored round, and "b" has replaced it in a later one.
TEST(RendezvousResume, ANewerRoundDecidesWhichNodeHasAStaticRank) {
  Job job(with(restarts(2, 2, 1), [](JobSettings& s) { s.static_ranks = true; }));
  job.node("a").static_rank = job.node("b").static_rank = 0;
  job.node("c").static_rank = 1;
  job.join_all({"a", "c"});
  job.done("a");
  const std::string state = job.machine().encode();
  job.cut("a");
  job.pass_and_tick(50ms);
  job.fail("c");
  job.gone("c");
  job.join_all({"b", "c"});
  ASSERT_EQ(job.round(), 2u);
  job.restore_coordinator(state);
  job.resume("a", NodePhase::kDone);
  const Sent sent = job.resume("b", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Refused>(sent, "a"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Resumed>(sent, "b"), nullptr);
  job.resume("c", NodePhase::kWorking);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 2u);
  job.run(100s, {"b", "c"});
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousResume, OnlyARoundOfAnEarlierCoordinatorIsTakenOver) {
  Job job(restarts(1, 1, 1));
  const auto limit = [&] { return job.machine().takeover_limit(); };
  job.join("a");
  job.cut("a");
  job.resume("a", NodePhase::kWorking);
  EXPECT_EQ(limit(), 0s);
  job.fail("a");
  ASSERT_TRUE(job.is_forming());
  EXPECT_EQ(limit(), 0s) << "between the rounds of this coordinator";
  const std::string state = job.machine().encode();
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  EXPECT_EQ(limit(), job.settings().store_grace);
  job.restore_coordinator(state);
  EXPECT_EQ(limit(), job.settings().store_grace);
  job.rejoin("a");
  job.run(3s, {"a"});
  ASSERT_TRUE(job.is_running());
  EXPECT_EQ(limit(), 0s);
}

TEST(RendezvousRebuild, EmptyCoordinatorIsRebuiltWhileWorkersKeepRunning) {
  Job job(nnodes(2, 3));
  job.join_all({"a", "b", "c"});
  job.restart_coordinator();
  const Sent first = job.resume("b", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Resumed>(first, "b"), nullptr);
  EXPECT_THAT(job.describe(), HasSubstr("round 0 is being rebuilt"));
  EXPECT_THAT(job.describe(), HasSubstr("1 of 3 nodes have resumed"));
  job.resume("a", NodePhase::kWorking);
  job.resume("c", NodePhase::kWorking);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 1u);
  job.run(120s, {"a", "b", "c"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.machine().members()[1].name, "b");
}

TEST(RendezvousRebuild, NewNodesWaitUntilTheRoundIsRebuilt) {
  Job job(with(nnodes(1, 3), [](JobSettings& s) { s.settle = 0s; }));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  const Sent sent = job.join("c");
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "c")->message, HasSubstr("being rebuilt"));
  EXPECT_EQ(sent.count<rdzv::Restart>(), 0);
  job.resume("b", NodePhase::kWorking);
  EXPECT_EQ(job.pass_and_tick(1s).count<rdzv::Restart>(), 2) << "now it may grow";
}

TEST(RendezvousRebuild, TheMissingAreLostAfterStoreGrace) {
  Job job(restarts(2, 3, 0));
  job.join_all({"a", "b", "c"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  job.resume("c", NodePhase::kWorking);
  job.run(59s, {"a", "c"});
  EXPECT_TRUE(job.is_running());
  job.run(2s, {"a", "c"});
  ASSERT_TRUE(job.is_forming());
  EXPECT_THAT(job.describe(), HasSubstr("the node of rank 1 was lost"));
  EXPECT_EQ(job.rejoin_all({"a", "c"}).count<rdzv::Round>(), 2);
  EXPECT_EQ(job.round(), 2u);
}

TEST(RendezvousRebuild, NoRoundBeginsWhileAMemberIsMissing) {
  Job job(restarts(2, 3, 1));
  job.join_all({"a", "b", "c"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  job.resume("c", NodePhase::kWorking);
  job.fail("a");
  job.rejoin_all({"a", "c"});
  job.run(30s, {"a", "c"});
  EXPECT_TRUE(job.is_forming()) << "b may still run workers of round 1";
  EXPECT_THAT(job.describe(), HasSubstr("for 1 node that have not resumed"));
  EXPECT_NE(job.action_to<rdzv::Restart>(job.resume("b", NodePhase::kWorking), "b"), nullptr);
  EXPECT_EQ(job.rejoin("b").count<rdzv::Round>(), 3);
}

TEST(RendezvousRebuild, MembersComeBeforeASpareThatResumedBeforeThem) {
  Job job(restarts(2, 2, 1));
  job.join_all({"a", "b"});
  job.join("spare");
  job.restart_coordinator();
  job.resume("spare", NodePhase::kJoined);
  job.resume("b", NodePhase::kWorking);
  job.resume("a", NodePhase::kWorking);
  job.fail("a");
  job.rejoin_all({"a", "b"});
  job.run(3s, {"a", "b", "spare"});
  ASSERT_EQ(job.round(), 2u);
  EXPECT_EQ(job.share("a").record->round, 2u);
  EXPECT_EQ(job.share("b").record->round, 2u);
}

TEST(RendezvousRebuild, TheNextRoundExceedsAllThatWereSeen) {
  Job job(nnodes(1, 4));
  job.join("a");
  job.run(31s, {"a"});
  job.restart_coordinator();
  job.node("x").highest_round = 41;
  job.join("x");
  const Sent sent = job.resume("a", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Resumed>(sent, "a"), nullptr);
  job.run(5s, {"a", "x"});
  job.rejoin("a");
  EXPECT_EQ(job.round(), 42u);
}

TEST(RendezvousRebuild, NoRoundCompletesInTheFirstTwoSecondsWithNodesThatHaveSeenOne) {
  Job job(nnodes(1, 2), kStartHold);
  job.node("a").highest_round = 3;
  job.join("a");
  const Sent sent = job.join("b");
  EXPECT_EQ(sent.count<rdzv::Round>(), 0) << "max_nodes, but a has seen a round";
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "b")->message,
              HasSubstr("earlier round to rejoin"));
  job.run(1900ms, {"a", "b"});
  EXPECT_TRUE(job.is_forming());
  job.run(200ms, {"a", "b"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 4u);
}

TEST(RendezvousRebuild, ASpareThatResumesFirstDoesNotFormASecondGroup) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.join("spare");
  job.restart_coordinator();
  EXPECT_EQ(job.resume("spare", NodePhase::kJoined).count<rdzv::Round>(), 0);
  job.pass(100ms);
  EXPECT_NE(job.action_to<rdzv::Resumed>(job.resume("a", NodePhase::kWorking), "a"), nullptr);
  job.run(5s, {"a", "spare"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 1u);
}

TEST(RendezvousRebuild, AfterTheHoldAnInterruptedRestartNeedsNoLastCall) {
  Job job(restarts(1, 8, 1));
  job.node("a").highest_round = 5;
  job.node("b").highest_round = 5;
  job.restart_coordinator();
  job.join_all({"a", "b"});
  job.run(2100ms, {"a", "b"});
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousRebuild, CountersSurvive) {
  Job job(restarts(2, 2, 3));
  job.join_all({"a", "b"});
  job.fail("a");
  job.rejoin_all({"a", "b"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kWorking);
  job.resume("b", NodePhase::kWorking);
  job.fail("b");
  job.rejoin_all({"a", "b"});
  EXPECT_TRUE(job.is_forming()) << "the hold of two seconds";
  job.run(2100ms, {"a", "b"});
  EXPECT_EQ(job.share("a").record->restarts, 2);
  EXPECT_EQ(job.round(), 3u);
}

TEST(RendezvousRebuild, EventsDuringTheOutageAreHandled) {
  Job job(restarts(2, 2, 1));
  job.join_all({"a", "b"});
  job.restart_coordinator();
  rdzv::Resume resume = job.resume_of("a", NodePhase::kWorking);
  resume.failure = FailureReport{0, 0, 5, "exited with code 5", job.now() - 3s};
  const Sent sent = job.step(resume);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  const Sent other = job.resume("b", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Restart>(other, "b"), nullptr);
  job.rejoin_all({"a", "b"});
  job.run(2100ms, {"a", "b"});
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousRebuild, DoneNodesCountInTheBarrier) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kDone);
  EXPECT_FALSE(job.is_closed()) << "b is missing";
  job.resume("b", NodePhase::kWorking);
  job.done("b");
  EXPECT_TRUE(job.is_closed());
}

TEST(RendezvousRebuild, AMissingMemberHasNotFinishedThoughAllOthersAreDone) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.restart_coordinator();
  job.resume("a", NodePhase::kDone);
  job.run(61s, {"a"});
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().cause, JobCause::kNodeLost);
  EXPECT_EQ(job.result().node, "the node of rank 1");
}

TEST(RendezvousRebuild, ReplacementsRunTheRoundThatTheMissingDidNotFinish) {
  Job job(nnodes(3, 3));
  job.join_all({"a", "b", "c"});
  job.done("c");
  job.restart_coordinator();
  job.resume("c", NodePhase::kDone);
  job.join("a2");
  job.join("b2");
  job.run(59s, {"c", "a2", "b2"});
  EXPECT_EQ(job.round(), 1u) << "the missing may still come back";
  job.run(2s, {"c", "a2", "b2"});
  EXPECT_EQ(job.join("c").count<rdzv::Round>(), 3);
  EXPECT_EQ(job.share("a2").record->restarts, 0) << "enough nodes are at hand";
}

// The done node of an earlier job with this id resumes at a coordinator that was started for the
// next job, whose nodes may already wait there.
TEST(RendezvousRebuild, TheSuccessOfAnEarlierJobIsNotTheResultOfTheNext) {
  Job job(nnodes(1, 2));
  job.join("old");
  job.run(31s, {"old"});
  ASSERT_EQ(job.round(), 1u);
  job.restart_coordinator();
  job.join("early");
  const Sent resumed = job.resume("old", NodePhase::kDone);
  ASSERT_NE(job.action_to<rdzv::Closed>(resumed, "old"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Closed>(resumed, "old")->result->outcome, JobOutcome::kSucceeded);
  EXPECT_EQ(job.action_to<rdzv::Closed>(resumed, "early"), nullptr);
  EXPECT_TRUE(job.is_forming());
  EXPECT_EQ(job.join("late").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("early").record->generation, 2u);
  job.leave("old");
  job.done("early");
  EXPECT_EQ(job.done("late").count<rdzv::Closed>(), 2);
}

TEST(RendezvousRebuild, ANodeThatJoinsAfterTheSuccessOfAnEarlierJobFormsTheNext) {
  Job job(nnodes(1, 1));
  job.join("old");
  job.restart_coordinator();
  job.resume("old", NodePhase::kDone);
  ASSERT_TRUE(job.is_closed());
  const Sent sent = job.join("new");
  EXPECT_NE(job.action_to<rdzv::Round>(sent, "new"), nullptr);
  // The old node has not received the result, and resumes again.
  const Sent resumed = job.resume("old", NodePhase::kDone);
  ASSERT_NE(job.action_to<rdzv::Closed>(resumed, "old"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Closed>(resumed, "old")->result->outcome, JobOutcome::kSucceeded);
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousRebuild, ASpareThatResumesReceivesTheSuccessOfItsJob) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.join("spare");
  job.restart_coordinator();
  job.resume("spare", NodePhase::kJoined);
  EXPECT_NE(job.action_to<rdzv::Closed>(job.resume("a", NodePhase::kDone), "spare"), nullptr);
}

TEST(RendezvousRebuild, EndingRoundIsRestored) {
  Job job(restarts(2, 2, 1));
  job.join_all({"a", "b"});
  job.fail("a");
  job.gone("a");
  job.join("a");
  job.restart_coordinator();
  job.resume("a", NodePhase::kJoined);
  EXPECT_TRUE(job.is_forming());
  const Sent sent = job.resume("b", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "b"), nullptr);
  job.rejoin("b");
  job.run(2100ms, {"a", "b"});
  EXPECT_EQ(job.round(), 2u);
}

TEST(RendezvousRebuild, LaterRoundReplacesTheRestoredOne) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  const rdzv::Resume stale = job.resume_of("b", NodePhase::kWorking);
  job.run(6s, {"a"});  // b is lost, and was not notified
  job.rejoin("a");
  ASSERT_EQ(job.round(), 2u);
  job.restart_coordinator();
  job.step(stale);
  EXPECT_EQ(job.round(), 1u);
  const Sent sent = job.resume("a", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Resumed>(sent, "a"), nullptr);
  EXPECT_EQ(job.round(), 2u);
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousRebuild, MemberThatHostedTheCoordinatorIsNotAwaited) {
  Job job(restarts(2, 3, 1));
  job.node("a").hosts_coordinator = true;
  job.join_all({"a", "b", "c"});
  EXPECT_EQ(job.share("b").record->coordinator_rank, 0);
  job.restart_coordinator();
  job.node("a2").hosts_coordinator = true;
  job.join("a2");  // the agent was started again on the same machine
  const Sent sent = job.resume("b", NodePhase::kWorking);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "b"), nullptr);
  job.resume("c", NodePhase::kWorking);
  const Sent formed = job.rejoin_all({"b", "c"});
  job.run(3s, {"a2", "b", "c"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.rank("a2"), 0);
  EXPECT_EQ(job.rank("b"), 1);
  EXPECT_EQ(job.rank("c"), 2);
}

TEST(RendezvousRebuild, ReplacementOfTheHostMayJoinBeforeTheJobFails) {
  for (const bool is_in_time : {true, false}) {
    Job job(nnodes(2, 2));  // no restart is left
    job.node("a").hosts_coordinator = true;
    job.join_all({"a", "b"});
    job.restart_coordinator();
    job.resume("b", NodePhase::kWorking);
    job.run(1s, {"b"});
    ASSERT_FALSE(job.is_closed());
    if (is_in_time) {
      EXPECT_NE(job.action_to<rdzv::Restart>(job.join("a2"), "b"), nullptr);
      job.rejoin("b");
    }
    job.run(1100ms, {"a2", "b"});
    EXPECT_EQ(job.is_running(), is_in_time);
    EXPECT_EQ(job.is_closed(), !is_in_time);
  }
}

TEST(RendezvousRebuild, MachineWithARoundOfItsOwnIgnoresResumedRounds) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.run(6s, {"a"});
  job.rejoin("a");
  rdzv::Resume resume = job.resume_of("b", NodePhase::kWorking);
  resume.last->record.round = 9;
  const Sent sent = job.step(resume);
  EXPECT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_EQ(job.round(), 2u);
}

}  // namespace
}  // namespace elastic::test
