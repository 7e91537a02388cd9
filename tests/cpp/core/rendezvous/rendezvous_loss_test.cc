// Lost nodes and failed workers: which nodes restart, what the job is charged, and when it fails.

#include <gmock/gmock.h>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JobSettings budget(int min_nodes, int max_nodes, int max_restarts) {
  return with(nnodes(min_nodes, max_nodes), [&](JobSettings& s) { s.max_restarts = max_restarts; });
}

TEST(RendezvousLoss, AFailedWorkerRestartsAllAndCostsOne) {
  Job job(budget(2, 2, 3));
  job.join_all({"a", "b"});
  const Sent sent = job.fail("b", 3);
  const auto* restart = job.action_to<rdzv::Restart>(sent, "a");
  ASSERT_NE(restart, nullptr);
  EXPECT_EQ(restart->cause, rdzv::RestartCause::kWorkerFailed);
  EXPECT_EQ(restart->reason, "rank 1 on b exited with code 3");
  EXPECT_EQ(restart->round, 1u);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "b"), nullptr);
  const Sent again = job.rejoin_all({"a", "b"});
  EXPECT_EQ(again.count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 1);
  EXPECT_EQ(job.rank("a"), 0);
  EXPECT_EQ(job.rank("b"), 1);
}

// A node behind a slow network needs several round trips to resume. With reconnect_grace alone it
// was lost while it reconnected.
TEST(RendezvousLoss, NodesThatHaveStoppedTheirWorkersAreNotMissing) {
  Job job(with(nnodes(2, 2), [](JobSettings& s) {
    s.join_timeout = 5s;
    s.max_restarts = 1;
  }));
  job.join_all({"a", "b"});
  job.fail("a");
  job.gone("a");
  job.gone("b");
  job.run(20s, {"a", "b"});
  EXPECT_TRUE(job.is_forming());
  EXPECT_TRUE(job.has_round(job.join_all({"a", "b"}), "a"));
}

TEST(RendezvousLoss, AMeasuredRoundTripExtendsTheReconnectGrace) {
  Job job(with(budget(1, 2, 3), [](JobSettings& s) { s.reconnect_grace = 50ms; }));
  job.join_all({"a", "b"});
  job.step(rdzv::SessionLost{job.id("b"), 600ms});
  EXPECT_EQ(job.action_to<rdzv::Evicted>(job.pass_and_tick(599ms), "b"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Evicted>(job.pass_and_tick(1ms), "b"), nullptr);
}

TEST(RendezvousLoss, ANodeWhoseProcessHasEndedIsLostAtOnce) {
  Job job(with(budget(1, 3, 3), [](JobSettings& s) { s.reconnect_grace = 60s; }));
  job.join_all({"a", "b", "c"});
  EXPECT_TRUE(job.end("b").nothing()) << "its session is open";
  EXPECT_TRUE(job.cut("b").nothing());
  job.resume("b", rdzv::NodePhase::kWorking);
  EXPECT_TRUE(job.end("b").nothing()) << "it has resumed";
  job.cut("b");
  const Sent sent = job.end("b");
  const auto* restart = job.action_to<rdzv::Restart>(sent, "a");
  ASSERT_NE(restart, nullptr);
  EXPECT_EQ(restart->cause, rdzv::RestartCause::kMemberLost);
  EXPECT_EQ(restart->reason, "b was lost (its session was closed and its agent has ended)");
  EXPECT_EQ(job.share("a").record->restarts, 0);
  EXPECT_EQ(job.rejoin_all({"a", "c"}).count<rdzv::Round>(), 2);
  EXPECT_TRUE(job.end("b").nothing());
}

// The coordinator reports the end of several nodes one after another.
TEST(RendezvousLoss, ARoundWaitsForClosedSessionsBesideThoseThatHaveEnded) {
  Job job(with(budget(1, 4, 3), [](JobSettings& s) { s.reconnect_grace = 50ms; }));
  job.join_all({"a", "b", "c", "d"});
  job.cut("c");
  job.cut("d");
  job.end("d");
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 0) << "c may resume";
  EXPECT_EQ(job.end("c").count<rdzv::Round>(), 2);
}

JobSettings with_backoff(Duration first) {
  return with(nnodes(2, 2), [&](JobSettings& s) {
    s.max_restarts = 100;
    s.restart_backoff = first;
  });
}

// The delay until the next round after a failure at this age of the round.
Duration wait_after_failure(Job* job, Duration age) {
  job->run(age, {"a", "b"});
  const std::uint64_t round = job->round();
  job->fail("a");
  job->rejoin_all({"a", "b"});
  const Instant ended = job->now();
  while (job->round() == round && job->now() - ended < 600s) {
    job->beat("a");
    job->beat("b");
    job->pass_and_tick(500ms);
  }
  return job->now() - ended;
}

TEST(RendezvousLoss, RoundsThatFailEarlyAreFollowedLaterAndLater) {
  Job job(with_backoff(2s));
  job.join_all({"a", "b"});
  for (const Duration wait : {0s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    EXPECT_EQ(wait_after_failure(&job, 1s), wait);
  }
  EXPECT_EQ(wait_after_failure(&job, 5s), 0s) << "the round lasted";
  EXPECT_EQ(wait_after_failure(&job, 1s), 0s);
  EXPECT_EQ(wait_after_failure(&job, 1s), 2s);
}

TEST(RendezvousLoss, TheBackoffIsReportedToTheNodesThatWait) {
  Job job(with_backoff(2s));
  job.join_all({"a", "b"});
  wait_after_failure(&job, 1s);
  job.fail("a");
  job.rejoin("a");
  const Sent sent = job.rejoin("b");
  ASSERT_NE(job.action_to<rdzv::Waiting>(sent, "b"), nullptr);
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "b")->message,
              HasSubstr("workers failed within 5 s in 2 rounds in a row, the next one starts"));
}

TEST(RendezvousLoss, ABackoffOfZeroRestartsAtOnce) {
  Job job(with_backoff(0s));
  job.join_all({"a", "b"});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(wait_after_failure(&job, 0s), 0s);
}

TEST(RendezvousLoss, ManyFailuresInOneRoundCostOne) {
  Job job(budget(3, 3, 1));
  job.join_all({"a", "b", "c"});
  job.fail("a");
  job.fail("b");
  job.fail("c");
  job.rejoin_all({"a", "b", "c"});
  EXPECT_EQ(job.round(), 2u);
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousLoss, SpentBudgetClosesTheJobWithTheEarliestCause) {
  Job job(budget(2, 3, 0));
  job.join_all({"a", "b", "c"});
  job.fail("a", 1);
  job.pass(100ms);
  job.fail("b", 7, 5s);  // found later, but its evidence is older
  job.gone("a");
  job.gone("b");
  EXPECT_FALSE(job.is_closed()) << "c has not reported yet";
  const Sent sent = job.gone("c");
  EXPECT_EQ(sent.count<rdzv::Closed>(), 3);
  EXPECT_EQ(job.result().outcome, JobOutcome::kFailed);
  EXPECT_EQ(job.result().cause, JobCause::kWorker);
  EXPECT_EQ(job.result().exit_code, 7);
  EXPECT_EQ(job.result().node, "b");
  EXPECT_EQ(job.result().rank, 1);
  EXPECT_EQ(job.result().message, "rank 1 on b exited with code 7; no restart is allowed");
}

// A process that is killed closes its connections before its exit is known.
TEST(RendezvousLoss, LossOfAPeerIsNoCauseIfAWorkerOfAnotherNodeFailed) {
  constexpr const char* kLostPeer = "RuntimeError: [pair.cc:5] Connection closed by peer";
  Job job(budget(2, 3, 0));
  job.join_all({"a", "b", "c"});
  job.fail("a", 1, 0s, kLostPeer);
  job.pass(1s);
  job.fail("b", 137);
  job.fail("c", 1, 2s, kLostPeer);
  for (const char* name : {"a", "b", "c"}) job.gone(name);
  EXPECT_EQ(job.result().exit_code, 137);
  EXPECT_EQ(job.result().node, "b");
}

TEST(RendezvousLoss, TheVerdictWaitsForSlowWorkersNoLongerThanNodeTimeout) {
  Job job(budget(2, 3, 0));
  job.join_all({"a", "b", "c"});
  job.fail("a", 3);
  job.gone("a");
  job.run(4900ms, {"a", "b", "c"});
  EXPECT_FALSE(job.is_closed());
  job.run(200ms, {"a", "b", "c"});
  EXPECT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().exit_code, 3);
}

TEST(RendezvousLoss, ASurvivableLossExplainsTheErrorsThatPrecededIt) {
  Job job(budget(2, 3, 0));
  job.join_all({"a", "b", "c"});
  job.fail("a");  // its collective broke because c's host has died
  job.fail("b");
  job.gone("a");
  job.gone("b");
  EXPECT_FALSE(job.is_closed());
  job.run(5s, {"a", "b"});
  ASSERT_FALSE(job.is_closed());
  const Sent sent = job.join_all({"a", "b"});
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 0) << "a lost node is free";
}

TEST(RendezvousLoss, ErrorsThatFollowALossAreItsConsequence) {
  Job job(budget(2, 3, 0));
  job.join_all({"a", "b", "c"});
  job.cut("c");
  job.pass_and_tick(50ms);
  job.fail("a");
  job.rejoin_all({"a", "b"});
  EXPECT_EQ(job.round(), 2u);
  EXPECT_EQ(job.share("a").record->restarts, 0);
}

TEST(RendezvousLoss, ALossLongAfterTheErrorsDoesNotExplainThem) {
  Job job(budget(2, 3, 1));
  job.join_all({"a", "b", "c"});
  job.fail("a");
  job.gone("a");
  job.gone("b");
  job.run(6s, {"a", "b", "c"});  // c is slow to stop: the failure is charged without it
  job.cut("c");
  job.pass_and_tick(50ms);
  job.join_all({"a", "b"});
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousLoss, SurvivorsContinueWithoutALostNode) {
  Job job(nnodes(2, 3));
  job.join_all({"a", "b", "c"});
  job.cut("b");
  const Sent sent = job.pass_and_tick(50ms);
  ASSERT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Restart>(sent, "a")->cause, rdzv::RestartCause::kMemberLost);
  EXPECT_THAT(job.action_to<rdzv::Restart>(sent, "a")->reason, HasSubstr("b was lost"));
  EXPECT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  const Sent formed = job.rejoin_all({"a", "c"});
  EXPECT_EQ(formed.count<rdzv::Round>(), 2);
  EXPECT_EQ(job.rank("a"), 0);
  EXPECT_EQ(job.rank("c"), 1) << "rank 2 is beyond the smaller world";
  EXPECT_EQ(job.share("a").record->membership_changes, 1);
}

TEST(RendezvousLoss, ALaterRoundNeedsNoLastCall) {
  Job job(nnodes(1, 8));
  job.join_all({"a", "b", "c"});
  job.run(31s, {"a", "b", "c"});
  ASSERT_TRUE(job.is_running());
  job.leave("b");
  EXPECT_EQ(job.rejoin_all({"a", "c"}).count<rdzv::Round>(), 2) << "at once";
}

TEST(RendezvousLoss, SilenceIsALossAfterNodeTimeout) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.pass(4s);
  job.beat("a");
  EXPECT_EQ(job.pass_and_tick(1s - 1ns).count<rdzv::Evicted>(), 0);
  const Sent sent = job.pass_and_tick(1ns);
  ASSERT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Evicted>(sent, "b")->reason, "no sign of life for 5 s");
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
}

TEST(RendezvousLoss, ALeaveIsAnnouncedAndActedUponAtOnce) {
  Job job(nnodes(2, 3));
  job.join_all({"a", "b", "c"});
  const Sent sent = job.leave("a");
  EXPECT_EQ(sent.count<rdzv::Restart>(), 2);
  EXPECT_EQ(sent.count<rdzv::Evicted>(), 0) << "it knows";
  EXPECT_TRUE(job.step(rdzv::Gone{job.id("a"), 1}).nothing()) << "its workers end later";
  EXPECT_EQ(job.rejoin_all({"b", "c"}).count<rdzv::Round>(), 2);
  EXPECT_EQ(job.rank("b"), 1) << "survivors keep their rank";
  EXPECT_EQ(job.rank("c"), 0) << "the one beyond the new size takes the freed rank";
}

TEST(RendezvousLoss, AStalledCoordinatorEvictsNoNode) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass(15s);
  job.step(rdzv::ClockGap{15s});
  EXPECT_EQ(job.tick().count<rdzv::Evicted>(), 0);
  job.resume("b", rdzv::NodePhase::kWorking);
  job.beat("a");
  job.run(4s);
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousLoss, StallExtendsEveryNodeDeadline) {
  Job job(budget(2, 2, 1));
  job.join_all({"a", "b"});
  job.fail("a");
  job.gone("a");
  job.run(39s, {"a", "b"});
  job.pass(100s);
  job.step(rdzv::ClockGap{100s});
  EXPECT_EQ(job.tick().count<rdzv::Evicted>(), 0) << "b's report may lie unread";
  job.rejoin_all({"b", "a"});
  EXPECT_TRUE(job.is_running());
}

// What is due after a stall is not due at its end: nodes had no time to do anything.
TEST(RendezvousLoss, AStallMakesNoRoundAndNoWaitOlder) {
  Job job(with(budget(1, 8, 9), [](JobSettings& s) { s.last_call_timeout = s.settle = 30s; }));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  ASSERT_TRUE(job.is_running());
  job.join("c");
  job.run(1s, {"a", "b", "c"});
  job.pass(100s);
  job.step(rdzv::ClockGap{100s});
  EXPECT_EQ(job.tick().count<rdzv::Restart>(), 0) << "settle has not ended";
  job.run(28s, {"a", "b", "c"});
  EXPECT_TRUE(job.is_running());
  job.run(2s, {"a", "b", "c"});
  EXPECT_TRUE(job.is_forming());
}

// I8: a lost node cannot decide for the job, also if many others were lost after it.
TEST(RendezvousLoss, ALostNodeIsRememberedInALargeJob) {
  constexpr int kNodes = 100;
  Job job(with(budget(1, kNodes, 9), [](JobSettings& s) { s.on_loss = LossPolicy::kReplace; }));
  std::vector<std::string> names;
  for (int i = 0; i < kNodes; ++i) names.push_back("n" + std::to_string(i));
  job.join_all(names);
  ASSERT_TRUE(job.is_running());
  for (int i = 0; i + 1 < kNodes; ++i) job.cut(names[static_cast<std::size_t>(i)]);
  job.pass_and_tick(1s);
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  job.step(rdzv::Close{job.id("n0"), result});
  EXPECT_FALSE(job.is_closed());
}

TEST(RendezvousLoss, EvictedNodeIsNotifiedAndMayRejoin) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.run(6s, {"a"});
  const Sent sent = job.beat("b");
  ASSERT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_THAT(job.action_to<rdzv::Evicted>(sent, "b")->reason, HasSubstr("no sign of life"));
  EXPECT_NE(job.action_to<rdzv::Evicted>(job.step(rdzv::Gone{job.id("b"), 1}), "b"), nullptr);
  job.rejoin("a");
  job.node("b").previous_rank = 1;
  EXPECT_NE(job.action_to<rdzv::Waiting>(job.join("b"), "b"), nullptr);
}

TEST(RendezvousLoss, JoinSentBeforeTheEvictedRoundIsStale) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.run(6s, {"a"});
  job.node("b").highest_round = 0;  // it has not received round 1 yet, and may start its workers
  const Sent sent = job.join("b");
  ASSERT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Evicted>(sent, "b")->round, 1u) << "with which it may join";
  EXPECT_NE(job.action_to<rdzv::Waiting>(job.join("b"), "b"), nullptr);
}

TEST(RendezvousLoss, NoNodeIsAwaitedLongerThanItsGraceAndTenSeconds) {
  Job job(budget(1, 2, 1));
  job.node("b").failure_grace = 5s;
  job.join_all({"a", "b"});
  job.fail("a");
  job.rejoin("a");
  job.run(14900ms, {"a", "b"});
  EXPECT_TRUE(job.is_forming());
  EXPECT_THAT(job.describe(), HasSubstr("waiting for 1 node to stop their workers (b)"));
  job.run(200ms, {"a", "b"});
  EXPECT_TRUE(job.is_running());
  const Sent sent = job.beat("b");
  EXPECT_EQ(job.action_to<rdzv::Evicted>(sent, "b")->reason,
            "it did not stop its workers within its grace and 10 s");
}

TEST(RendezvousLoss, StoppedNodeThatDoesNotJoinIsEvicted) {
  Job job(budget(1, 2, 1));
  job.join_all({"a", "b"});
  job.fail("a");
  job.rejoin("a");
  job.gone("b");
  job.run(39s, {"a", "b"});
  EXPECT_TRUE(job.is_forming());
  job.run(2s, {"a", "b"});
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousLoss, BelowMinALossCostsOneAndWaitsForAReplacement) {
  Job job(budget(2, 2, 1));
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass_and_tick(50ms);
  job.rejoin("a");
  job.run(300s, {"a"});
  EXPECT_TRUE(job.is_forming());
  EXPECT_THAT(job.describe(), HasSubstr("1 of 2 nodes (a), gives up in 5 min"));
  const Sent sent = job.join("c");
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
  EXPECT_EQ(job.rank("a"), 0);
  EXPECT_EQ(job.rank("c"), 1) << "a replacement takes the freed rank";
  EXPECT_EQ(job.share("c").record->restarts, 1);
}

TEST(RendezvousLoss, BelowMinWithoutBudgetTheJobFailsAtOnceNamingTheNode) {
  Job job(budget(2, 2, 0));
  job.join_all({"a", "b"});
  job.cut("b");
  const Sent sent = job.pass_and_tick(50ms);
  ASSERT_NE(job.action_to<rdzv::Closed>(sent, "a"), nullptr);
  EXPECT_EQ(job.result().cause, JobCause::kNodeLost);
  EXPECT_EQ(job.result().node, "b");
  EXPECT_THAT(job.result().lost, ElementsAre("b"));
  EXPECT_THAT(job.result().message,
              HasSubstr("1 of at least 2 nodes remain and no restart is allowed"));
}

TEST(RendezvousLoss, FailOnLossFailsWhateverTheBudget) {
  Job job(with(budget(2, 2, 5), [](JobSettings& s) { s.on_loss = LossPolicy::kFail; }));
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass_and_tick(50ms);
  EXPECT_TRUE(job.is_closed());
  EXPECT_THAT(job.result().message, HasSubstr("lost nodes are not replaced"));
}

TEST(RendezvousLoss, ASpareMakesALossFree) {
  Job job(budget(2, 2, 0));
  job.join_all({"a", "b"});
  job.join("spare");
  job.cut("a");
  job.pass_and_tick(50ms);
  const Sent sent = job.rejoin("b");
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
  EXPECT_EQ(job.rank("spare"), 0) << "the spare takes over the lost rank";
  EXPECT_EQ(job.rank("b"), 1);
  EXPECT_EQ(job.share("b").record->restarts, 0);
  EXPECT_EQ(job.share("b").record->master_addr, job.node("spare").address);
}

TEST(RendezvousLoss, ErrorsAndALossBelowMinCostOneTogether) {
  Job job(budget(2, 2, 1));
  job.join_all({"a", "b"});
  job.fail("a");
  job.gone("a");
  job.run(6s, {"a"});
  EXPECT_FALSE(job.is_closed());
  job.join("a");
  job.join("c");
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousLoss, ALossAfterTheVerdictIsNotChargedOnTop) {
  Job job(budget(2, 2, 2));
  job.join_all({"a", "b"});
  job.fail("a");
  job.gone("a");
  job.gone("b");  // now the failure is charged: one restart
  job.leave("b");
  job.join("a");
  EXPECT_EQ(job.join("c").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousLoss, WithoutAReplacementTheJobFailsAfterTheJoinTimeout) {
  Job job(budget(2, 2, 1));
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass_and_tick(50ms);
  job.rejoin("a");
  job.run(599s, {"a"});
  EXPECT_FALSE(job.is_closed());
  job.run(2s, {"a"});
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().cause, JobCause::kTooFewNodes);
  EXPECT_EQ(job.result().node, "b");
  EXPECT_THAT(job.result().message, HasSubstr("gave up after 10 min"));
  EXPECT_THAT(job.result().message, HasSubstr("b was lost"));
}

TEST(RendezvousLoss, TheShortageBeginsWhenTheOthersHaveStopped) {
  JobSettings settings = budget(2, 2, 1);
  settings.join_timeout = 20s;
  Job job(settings);
  job.node("a").failure_grace = 25s;
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass_and_tick(50ms);
  job.run(24s, {"a"});
  EXPECT_FALSE(job.is_closed()) << "no node is given up while a member stops its workers";
  job.rejoin("a");
  job.run(19s, {"a"});
  EXPECT_FALSE(job.is_closed());
  job.run(2s, {"a"});
  EXPECT_TRUE(job.is_closed());
}

TEST(RendezvousLoss, LossWhileFormingChangesTheNextRound) {
  Job job(budget(2, 3, 1));
  job.join_all({"a", "b", "c"});
  job.leave("c");
  job.rejoin("a");
  job.cut("b");
  job.pass_and_tick(50ms);
  EXPECT_TRUE(job.is_forming());
  EXPECT_EQ(job.join("d").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.share("a").record->restarts, 1);
}

TEST(RendezvousLoss, RoundWaitsForASuspectNode) {
  Job job(nnodes(1, 2));
  job.join("a");
  job.cut("a");
  EXPECT_EQ(job.join("b").count<rdzv::Round>(), 0);
  const Sent sent = job.resume("a", rdzv::NodePhase::kJoined);
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
}

TEST(RendezvousLoss, JobEndsAfterTheJoinTimeoutWithoutNodes) {
  Job job(budget(1, 2, 3));
  job.join_all({"a", "b"});
  job.leave("a");
  job.leave("b");
  EXPECT_FALSE(job.is_closed());
  EXPECT_FALSE(job.machine().is_removable()) << "another node may continue it";
  job.run(601s);
  EXPECT_TRUE(job.is_closed());
  EXPECT_TRUE(job.machine().is_removable());
}

TEST(RendezvousLoss, ShrinkDelayWaitsForAReplacementBeforeGoingSmaller) {
  JobSettings settings = nnodes(1, 3);
  settings.shrink_delay = 10s;
  Job job(settings);
  job.join_all({"a", "b", "c"});
  job.leave("c");
  job.rejoin_all({"a", "b"});
  EXPECT_THAT(job.describe(), HasSubstr("for a replacement"));
  job.run(5s, {"a", "b"});
  EXPECT_TRUE(job.is_forming());
  EXPECT_EQ(job.join("d").count<rdzv::Round>(), 3) << "at once, the world is as large as before";

  job.leave("d");
  job.rejoin_all({"a", "b"});
  job.run(10s, {"a", "b"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.share("a").record->nodes, 2);
}

TEST(RendezvousLoss, SimultaneousLossesCostOneRestart) {
  Job job(nnodes(2, 5));
  job.join_all({"a", "b", "c", "d", "e"});
  job.cut("c");
  job.cut("d");
  job.cut("e");
  const Sent sent = job.pass_and_tick(1s);
  EXPECT_EQ(sent.count<rdzv::Evicted>(), 3);
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 2);
  EXPECT_EQ(job.round(), 2u);
}

}  // namespace
}  // namespace elastic::test
