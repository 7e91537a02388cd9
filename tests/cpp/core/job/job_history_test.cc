// The rounds of a job as observers see them.

#include "core/job/job_history.h"

#include <gtest/gtest.h>

#include <chrono>

#include "core/session/session_wire.h"
#include "support/instant.h"

namespace elastic::core {
namespace {

using std::chrono::seconds;
using support::at;

RoundRecord round_of(std::uint64_t number) {
  RoundRecord record;
  record.round = number;
  record.nodes = 2;
  record.world_size = 4;
  return record;
}

rdzv::Failed failed(std::uint64_t round, int rank, int second) {
  return {{}, round, {0, rank, 137, "killed by signal 9", at(second)}};
}

rdzv::Failed lost_peer(std::uint64_t round, int rank, int second) {
  rdzv::Failed event = failed(round, rank, second);
  event.failure.evidence = FailureEvidence{};
  event.failure.evidence->error = "RuntimeError: [pair.cc:5] Connection closed by peer";
  return event;
}

TEST(JobHistory, ARestartHasItsCauseItsTimesAndTheEarliestFailure) {
  JobHistory history;
  history.update(RendezvousPhase::kRunning, round_of(1), at(10));
  history.worker_failed("node1", failed(1, 3, 22));
  history.worker_failed("node0", failed(1, 0, 21));
  history.worker_failed("node2", failed(1, 5, 23));
  history.round_ends({{}, 1, rdzv::RestartCause::kWorkerFailed, "rank 0 failed", {}}, at(24));
  history.round_ends({{}, 1, rdzv::RestartCause::kMemberLost, "a later message", {}}, at(25));
  history.workers_ended(1, at(26));
  history.workers_ended(1, at(27));
  history.update(RendezvousPhase::kForming, round_of(1), at(27));
  history.update(RendezvousPhase::kRunning, round_of(2), at(30), "rule 1");
  history.update(RendezvousPhase::kRunning, round_of(2), at(31), "rule 1");

  ASSERT_EQ(history.rounds().size(), 2u);
  EXPECT_EQ(history.rounds()[0].rule, "rule 1");
  EXPECT_EQ(history.rounds()[1].rule, "");
  const ObservedRound& first = history.rounds()[0];
  EXPECT_EQ(first.formed, at(10));
  EXPECT_EQ(first.failed, at(21));
  EXPECT_EQ(first.ended, at(24));
  EXPECT_EQ(first.stopped, at(27));
  EXPECT_EQ(first.cause, rdzv::RestartCause::kWorkerFailed);
  EXPECT_EQ(first.reason, "rank 0 on node0 killed by signal 9");
  EXPECT_EQ(first.node, "node0");
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(first.exit_code, 137);
  EXPECT_EQ(history.rounds()[1].formed, at(30));
  EXPECT_EQ(history.rounds()[1].ended, std::nullopt);
}

TEST(JobHistory, TheReasonIsTheFailureThatIsNamed) {
  JobHistory history;
  history.update(RendezvousPhase::kRunning, round_of(1), at(10));
  history.worker_failed("node1", lost_peer(1, 3, 20));
  history.round_ends({{}, 1, rdzv::RestartCause::kWorkerFailed, "rank 3 failed", {}}, at(21));
  history.worker_failed("node0", failed(1, 0, 22));
  history.worker_failed("node2", lost_peer(1, 5, 19));
  EXPECT_EQ(history.rounds()[0].rank, 0) << "the others lost their peer";
  EXPECT_EQ(history.rounds()[0].failed, at(22));
  EXPECT_EQ(history.rounds()[0].reason, "rank 0 on node0 killed by signal 9");
}

TEST(JobHistory, OnlyTheTimeInWhichARoundRunsCounts) {
  JobHistory history;
  history.update(RendezvousPhase::kForming, round_of(0), at(1));
  EXPECT_EQ(history.began(), std::nullopt);
  history.update(RendezvousPhase::kRunning, round_of(1), at(10));
  EXPECT_EQ(history.running(at(15)), seconds(5));
  history.round_ends({{}, 1, rdzv::RestartCause::kMemberLost, "", {}}, at(20));
  history.update(RendezvousPhase::kForming, round_of(1), at(20));
  EXPECT_EQ(history.running(at(25)), seconds(10));
  history.update(RendezvousPhase::kRunning, round_of(2), at(30));
  history.update(RendezvousPhase::kClosed, round_of(2), at(33));
  EXPECT_EQ(history.running(at(99)), seconds(13));
  EXPECT_EQ(history.began(), at(10));
  EXPECT_EQ(history.rounds().back().cause, std::nullopt) << "the job ended with it";
}

TEST(JobHistory, TimeCountsFromTheFirstStepOfEachRoundIfStepsAreReported) {
  JobHistory history;
  history.update(RendezvousPhase::kRunning, round_of(1), at(10));
  EXPECT_EQ(history.running(at(13)), seconds(3)) << "no worker may ever report";
  EXPECT_TRUE(history.progressed(1, at(14)));
  EXPECT_FALSE(history.progressed(1, at(15)));
  EXPECT_FALSE(history.progressed(9, at(15)));
  EXPECT_EQ(history.running(at(20)), seconds(6));
  history.round_ends({{}, 1, rdzv::RestartCause::kMemberLost, "", {}}, at(20));
  EXPECT_FALSE(history.progressed(1, at(21))) << "late";
  history.update(RendezvousPhase::kForming, round_of(1), at(20));
  history.update(RendezvousPhase::kRunning, round_of(2), at(30));
  EXPECT_EQ(history.running(at(35)), seconds(6)) << "its workers are starting";
  EXPECT_TRUE(history.progressed(2, at(36)));
  EXPECT_EQ(history.running(at(40)), seconds(10));
  EXPECT_EQ(history.rounds()[1].first_step, at(36));
}

TEST(JobHistory, TheTimeOfAHangDoesNotCount) {
  JobHistory history;
  history.hangs(at(1), at(2));  // no round yet
  history.update(RendezvousPhase::kRunning, round_of(1), at(10));
  history.progressed(1, at(11));
  history.hangs(at(20), at(25));
  EXPECT_EQ(history.running(at(29)), seconds(9));
  history.hangs(std::nullopt, at(30));
  EXPECT_EQ(history.running(at(35)), seconds(14));
  history.hangs(at(40), at(45));
  history.round_ends({{}, 1, rdzv::RestartCause::kWorkerFailed, "", {}}, at(50));
  EXPECT_EQ(history.running(at(99)), seconds(19));
  history.update(RendezvousPhase::kForming, round_of(1), at(50));
  history.update(RendezvousPhase::kRunning, round_of(2), at(60));
  history.progressed(2, at(60));
  EXPECT_EQ(history.running(at(61)), seconds(20)) << "the next round does not hang";
}

TEST(JobHistory, ARoundWithoutAStepHasRunInVain) {
  JobHistory history;
  history.update(RendezvousPhase::kRunning, round_of(1), at(10));
  history.progressed(1, at(11));
  history.update(RendezvousPhase::kRunning, round_of(2), at(20));
  history.update(RendezvousPhase::kRunning, round_of(3), at(30));
  EXPECT_EQ(history.running(at(30)), seconds(9));
}

TEST(JobHistory, AnEarlierCoordinatorsRoundHasRunSinceItWasFound) {
  JobHistory history;
  history.update(RendezvousPhase::kRunning, round_of(7), at(10));
  history.progressed(7, at(12));
  EXPECT_EQ(history.running(at(15)), seconds(5));
}

TEST(JobHistory, ARoundOfAnEarlierCoordinatorHasNoBeginning) {
  JobHistory history;
  history.update(RendezvousPhase::kRunning, round_of(7), at(10));
  EXPECT_EQ(history.rounds()[0].formed, std::nullopt);
  history.update(RendezvousPhase::kRunning, round_of(8), at(20));
  EXPECT_EQ(history.rounds()[0].ended, at(20));
  EXPECT_EQ(history.rounds()[1].formed, at(20));
}

TEST(JobHistory, TheNumberOfRoundsIsLimited) {
  JobHistory history;
  for (int round = 1; round <= 200; ++round) {
    history.update(RendezvousPhase::kRunning, round_of(static_cast<std::uint64_t>(round)),
                   at(round));
  }
  EXPECT_EQ(history.rounds().size(), session::kRoundsObserved);
  EXPECT_EQ(history.rounds().back().round, 200u);
  EXPECT_EQ(history.running(at(201)), seconds(200));
}

}  // namespace
}  // namespace elastic::core
