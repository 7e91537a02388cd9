// Done nodes: the exit barrier, which nodes must join again, and how the job ends.

#include <gmock/gmock.h>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(RendezvousDone, AllDoneSucceeds) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  const Sent first = job.done("a");
  ASSERT_NE(job.action_to<rdzv::Waiting>(first, "a"), nullptr);
  EXPECT_THAT(job.action_to<rdzv::Waiting>(first, "a")->message,
              HasSubstr("1 done, waiting for 1 node to finish"));
  const Sent sent = job.done("b");
  EXPECT_EQ(sent.count<rdzv::Closed>(), 2);
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
  EXPECT_THAT(job.result().lost, IsEmpty());
}

TEST(RendezvousDone, ADoneNodeWaitsForWorkersWithoutLimit) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.run(7200s, {"a", "b"});
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousDone, SpareReceivesTheResult) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.join("spare");
  const Sent sent = job.done("a");
  ASSERT_NE(job.action_to<rdzv::Closed>(sent, "spare"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Closed>(sent, "spare")->result->outcome, JobOutcome::kSucceeded);
}

TEST(RendezvousDone, AJoinerNeverRestartsAJobWithADoneNode) {
  Job job(with(nnodes(1, 3), [](JobSettings& s) { s.settle = 0s; }));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  job.done("a");
  const Sent sent = job.join("late");
  EXPECT_EQ(sent.count<rdzv::Restart>(), 0);
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "late")->message, HasSubstr("has finished nodes"));
  job.run(100s, {"a", "b", "late"});
  EXPECT_TRUE(job.is_running());
  EXPECT_NE(job.action_to<rdzv::Closed>(job.done("b"), "late"), nullptr);
}

TEST(RendezvousDone, PendingGrowthIsCancelledByTheFirstDone) {
  Job job(nnodes(1, 4));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  job.join("late");
  EXPECT_EQ(job.machine().waiting_nodes(), 1);
  job.done("a");
  EXPECT_EQ(job.machine().waiting_nodes(), 0);
  job.run(10s, {"a", "b", "late"});
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousDone, WorkerFailureRecallsDoneNodes) {
  Job job(with(nnodes(2, 2), [](JobSettings& s) { s.max_restarts = 1; }));
  job.join_all({"a", "b"});
  job.done("a");
  const Sent sent = job.fail("b");
  ASSERT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  EXPECT_EQ(job.join("a").count<rdzv::Round>(), 0);
  const Sent formed = job.rejoin("b");
  EXPECT_EQ(formed.count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousDone, LossWithEnoughSurvivorsDoesNotRecallDoneNodes) {
  Job job(nnodes(2, 4));
  job.join_all({"a", "b", "c", "d"});
  job.done("a");
  job.cut("d");
  const Sent sent = job.pass_and_tick(50ms);
  EXPECT_EQ(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "b"), nullptr);
  const Sent formed = job.rejoin_all({"b", "c"});
  EXPECT_EQ(formed.count<rdzv::Round>(), 2);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.share("b").record->nodes, 2);
  job.done("b");
  const Sent end = job.done("c");
  EXPECT_EQ(end.count<rdzv::Closed>(), 3) << "a, done since the round before, receives it too";
}

TEST(RendezvousDone, LossRecallsDoneNodesWhenTheSurvivorsAreTooFew) {
  Job job(nnodes(2, 3));
  job.join_all({"a", "b", "c"});
  job.done("a");
  job.cut("c");
  const Sent sent = job.pass_and_tick(50ms);
  ASSERT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  job.join("a");
  EXPECT_EQ(job.rejoin("b").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 0) << "a and b are enough: the loss was free";
}

TEST(RendezvousDone, DoneNodeOfAnEarlierRoundIsRecalledOnlyIfNeeded) {
  Job job(with(nnodes(2, 4), [](JobSettings& s) { s.max_restarts = 3; }));
  job.join_all({"a", "b", "c", "d"});
  job.done("a");
  job.leave("d");
  job.rejoin_all({"b", "c"});
  ASSERT_EQ(job.round(), 2u);
  const Sent failed = job.fail("b");
  EXPECT_EQ(job.action_to<rdzv::Restart>(failed, "a"), nullptr) << "its part is finished";
  job.rejoin_all({"b", "c"});
  ASSERT_EQ(job.round(), 3u);
  const Sent lost = job.leave("c");
  EXPECT_NE(job.action_to<rdzv::Restart>(lost, "a"), nullptr) << "b alone is fewer than two";
  job.join("a");
  EXPECT_EQ(job.rejoin("b").count<rdzv::Round>(), 2);
}

TEST(RendezvousDone, TheLossOfTheLastWorkingMemberFailsTheJobAndNamesIt) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.run(5100ms, {"a"});
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().outcome, JobOutcome::kFailed);
  EXPECT_EQ(job.result().cause, JobCause::kNodeLost);
  EXPECT_THAT(job.result().lost, ElementsAre("b"));
  EXPECT_THAT(job.result().message, HasSubstr("b was lost"));
}

TEST(RendezvousDone, AReplacementAndTheDoneNodeRunTheRoundThatTheLostDidNotFinish) {
  Job job(with(nnodes(2, 2), [](JobSettings& s) { s.max_restarts = 3; }));
  job.join_all({"a", "b"});
  job.done("a");
  job.cut("b");
  const Sent lost = job.pass_and_tick(50ms);
  ASSERT_NE(job.action_to<rdzv::Restart>(lost, "a"), nullptr);
  job.join("a");
  EXPECT_EQ(job.join("b2").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 1);
  job.done("a");
  job.done("b2");
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
}

TEST(RendezvousDone, WithoutAReplacementTheJobFailsAfterJoinTimeoutAndNamesTheLost) {
  Job job(with(nnodes(2, 2), [](JobSettings& s) { s.max_restarts = 3; }));
  job.join_all({"a", "b"});
  job.done("a");
  job.cut("b");
  job.pass_and_tick(50ms);
  job.join("a");
  job.run(599s, {"a"});
  EXPECT_TRUE(job.is_forming());
  job.run(2s, {"a"});
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().cause, JobCause::kTooFewNodes);
  EXPECT_EQ(job.result().node, "b");
}

TEST(RendezvousDone, TheDoneNodeAloneRunsAnotherRoundWhereOneNodeIsEnough) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.cut("b");
  ASSERT_NE(job.action_to<rdzv::Restart>(job.pass_and_tick(50ms), "a"), nullptr);
  EXPECT_EQ(job.join("a").count<rdzv::Round>(), 1);
  EXPECT_EQ(job.share("a").record->restarts, 0);
}

TEST(RendezvousDone, ASpareTakesThePlaceOfTheLostBesideTheDoneNode) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.join("spare");
  job.done("a");
  job.cut("b");
  job.pass_and_tick(50ms);
  EXPECT_EQ(job.join("a").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("spare").record->restarts, 0);
}

TEST(RendezvousDone, ADoneNodeThatIsLostHasFinishedItsWork) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.cut("a");
  EXPECT_EQ(job.pass_and_tick(50ms).count<rdzv::Restart>(), 0);
  job.done("b");
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
  EXPECT_EQ(job.result().message, "all nodes have finished; a was lost after that");
}

TEST(RendezvousDone, FinishingIsNotAScaleDown) {
  Job job(nnodes(3, 3));
  job.join_all({"a", "b", "c"});
  job.done("a");
  const Sent sent = job.leave("a");  // its exit barrier timed out
  EXPECT_EQ(sent.count<rdzv::Restart>(), 0);
  job.done("b");
  EXPECT_TRUE(job.is_running());
  job.done("c");
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
}

TEST(RendezvousDone, TheLastWorkingMemberThatLeavesFailsTheJobAfterTheOthersHaveGone) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.leave("a");
  job.leave("b");
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().cause, JobCause::kNodeLost);
}

TEST(RendezvousDone, ALossBelowMinWithoutBudgetFailsDoneNodesToo) {
  Job job(nnodes(3, 3));
  job.join_all({"a", "b", "c"});
  job.done("a");
  job.leave("b");
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().cause, JobCause::kNodeLost);
}

TEST(RendezvousDone, AllDoneWhileGrowthWasStoppingThemIsSuccess) {
  Job job(with(nnodes(1, 3), [](JobSettings& s) { s.settle = 0s; }));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  job.join("late");
  ASSERT_TRUE(job.is_forming());
  job.done("a");  // both finished before the order to stop reached them
  EXPECT_TRUE(job.is_forming());
  job.done("b");
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
}

TEST(RendezvousDone, ANodeThatFinishedWhileGrowthStoppedTheOthersIsCalledBack) {
  Job job(with(nnodes(1, 3), [](JobSettings& s) { s.settle = 0s; }));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  job.join("late");
  job.done("a");
  const Sent sent = job.rejoin("b");
  EXPECT_EQ(sent.count<rdzv::Round>(), 0);
  EXPECT_EQ(job.join("a").count<rdzv::Round>(), 3);
}

TEST(RendezvousDone, DoneWhileALossStopsTheOthersStaysDone) {
  Job job(nnodes(1, 3));
  job.join_all({"a", "b", "c"});
  job.leave("c");
  job.done("a");
  const Sent sent = job.rejoin("b");
  EXPECT_EQ(sent.count<rdzv::Round>(), 1) << "b goes on alone";
  EXPECT_EQ(job.done("b").count<rdzv::Closed>(), 2);
}

TEST(RendezvousDone, BothDoneWhileALossStopsThemRunTheWorkOfTheLost) {
  Job job(nnodes(1, 3));
  job.join_all({"a", "b", "c"});
  job.cut("c");
  job.pass_and_tick(50ms);
  job.done("a");
  EXPECT_EQ(job.done("b").count<rdzv::Restart>(), 2);
  job.join("a");
  EXPECT_EQ(job.join("b").count<rdzv::Round>(), 2);
  job.done("a");
  job.done("b");
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
}

TEST(RendezvousDone, DoneNodesReplaceAFailedNodeThatLeaves) {
  Job job(with(nnodes(1, 2), [](JobSettings& s) { s.max_restarts = 1; }));
  job.join_all({"a", "b"});
  job.done("a");
  job.fail("b");
  job.gone("b");  // no node works any more: the failure is charged
  job.cut("b");
  job.pass_and_tick(50ms);
  EXPECT_FALSE(job.is_closed());
  EXPECT_EQ(job.join("a").count<rdzv::Round>(), 1);
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

}  // namespace
}  // namespace elastic::test
