// A coordinator that continues from a stored state, which may be older than its nodes' state.

#include <gmock/gmock.h>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using rdzv::NodePhase;
using testing::HasSubstr;

JobSettings restarts(int min_nodes, int max_nodes) {
  return with(nnodes(min_nodes, max_nodes), [](JobSettings& s) { s.max_restarts = 3; });
}

TEST(RendezvousRestore, ARoundCompletesAtOnceWhenAWorkerFailsAfterTheStartHold) {
  Job job(restarts(2, 2));
  job.join_all({"a", "b"});
  job.restore_coordinator(job.machine().encode());
  job.resume("a", NodePhase::kWorking);
  job.resume("b", NodePhase::kWorking);
  job.run(2100ms, {"a", "b"});
  job.fail("a");
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 2);
}

TEST(RendezvousRestore, NoRoundCompletesBeforeTheStartHoldIsOver) {
  Job job(restarts(2, 2));
  job.join_all({"a", "b"});
  job.restore_coordinator(job.machine().encode());
  job.resume("a", NodePhase::kWorking);
  job.resume("b", NodePhase::kWorking);
  job.fail("a");
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 0) << "a newer round may be held";
  EXPECT_EQ(job.pass_and_tick(2s).count<rdzv::Round>(), 2);
}

TEST(RendezvousRestore, ANodeThatDoesNotResumeIsLostAfterStoreGraceAndNotBefore) {
  Job job(restarts(1, 2));
  job.join_all({"a", "b"});
  job.restore_coordinator(job.machine().encode());
  job.resume("a", NodePhase::kWorking);
  job.run(59s, {"a"});
  EXPECT_TRUE(job.is_running());
  job.run(2s, {"a"});
  EXPECT_TRUE(job.is_forming());
  EXPECT_THAT(job.describe(), HasSubstr("b was lost (it did not resume within 1 min"));
}

TEST(RendezvousRestore, ANewerRoundThatANodeHoldsReplacesTheStoredOne) {
  Job job(restarts(2, 3));
  job.join_all({"a", "b"});
  job.run(31s, {"a", "b"});
  const std::string old = job.machine().encode();
  job.fail("a");
  job.rejoin_all({"a", "b"});
  ASSERT_EQ(job.round(), 2u);
  job.restore_coordinator(old);
  const Sent sent = job.resume("b", NodePhase::kWorking);
  EXPECT_EQ(sent.count<rdzv::Evicted>(), 0);
  EXPECT_EQ(job.resume("a", NodePhase::kWorking).count<rdzv::Evicted>(), 0);
  EXPECT_EQ(job.round(), 2u);
  EXPECT_TRUE(job.is_running());
  job.run(120s, {"a", "b"});
  EXPECT_EQ(job.round(), 2u);
  job.done("a");
  job.done("b");
  EXPECT_EQ(job.result().outcome, JobOutcome::kSucceeded);
}

TEST(RendezvousRestore, ADoneNodeThatWasCalledBackSinceThenJoinsTheNextRound) {
  Job job(restarts(2, 2));
  job.join_all({"a", "b"});
  job.done("a");
  const std::string old = job.machine().encode();
  job.fail("b");
  job.join("a");
  job.restore_coordinator(old);
  EXPECT_EQ(job.resume("a", NodePhase::kJoined).count<rdzv::Evicted>(), 0);
  EXPECT_NE(job.action_to<rdzv::Restart>(job.resume("b", NodePhase::kWorking), "b"), nullptr);
  job.rejoin("b");
  EXPECT_EQ(job.pass_and_tick(2s).count<rdzv::Round>(), 2);
}

TEST(RendezvousRestore, ARunningJobIsNotClosedByTheStoredEndOfTheJobBefore) {
  Job job(restarts(1, 1));
  job.join("first");
  job.done("first");
  const std::string old = job.machine().encode();
  ASSERT_TRUE(job.is_closed());
  job.leave("first");
  job.join("next");
  ASSERT_EQ(job.share("next").record->generation, 2u);
  job.restore_coordinator(old);
  const Sent sent = job.resume("next", NodePhase::kWorking);
  EXPECT_EQ(sent.count<rdzv::Closed>(), 0);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 2u);
}

TEST(RendezvousRestore, ANewJobDoesNotReceiveTheStoredResultOfNodesThatHaveGone) {
  Job job(restarts(1, 1));
  job.join("first");
  job.done("first");
  job.restore_coordinator(job.machine().encode());
  EXPECT_EQ(job.join("next").count<rdzv::Closed>(), 0);
  EXPECT_TRUE(job.is_running());
}

TEST(RendezvousRestore, ANodeThatWasToldToStopHasItsWholeGraceAfterItResumed) {
  Job job(restarts(2, 2));
  job.join_all({"a", "b"});
  job.fail("a");
  job.restore_coordinator(job.machine().encode());
  job.resume("a", NodePhase::kWorking);
  // Longer than the grace period and its margin.
  EXPECT_EQ(job.pass_and_tick(50s).count<rdzv::Evicted>(), 1) << "a, which was silent";
  job.resume("b", NodePhase::kWorking);
  job.run(39s, {"b"});
  EXPECT_EQ(job.machine().nodes(job.now()).size(), 1u);
}

}  // namespace
}  // namespace elastic::test
