#include "core/agent/agent_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "core/agent/agent_policy_harness.h"

namespace elastic::core {
namespace {

using namespace agent_policy_test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- INIT ----------------------------------------------------------------------------------------

TEST(AgentPolicy, InitJoinsWhenTheMembershipIsReady) {
  Fixture agent;
  EXPECT_THAT(agent.found().words(), ElementsAre("join 0"));
  EXPECT_EQ(agent.state(), AgentState::kInit);
  const auto& join = std::get<rdzv::Join>(agent.sent());
  EXPECT_EQ(join.node.name, "n");
  EXPECT_EQ(join.node.address, "10.0.0.1");
  EXPECT_EQ(join.node.local_world_size, 2);
}

TEST(AgentPolicy, InitStartsTheGroupOfARound) {
  Fixture agent;
  EXPECT_THAT(agent.found().quiet().round(1).words(), ElementsAre("start"));
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
}

TEST(AgentPolicy, InitReportsWaitingProgress) {
  Fixture agent;
  EXPECT_THAT(agent.found().quiet().feed(Progress{"2 of 3 nodes are here"}).words(),
              ElementsAre("report note"));
  EXPECT_EQ(agent.message(), "2 of 3 nodes are here");
}

TEST(AgentPolicy, InitJoinsAgainAfterARestartOfAnUnknownRound) {
  Fixture agent;
  EXPECT_THAT(agent.found().quiet().restart(4).words(), ElementsAre("join 4"));
  EXPECT_THAT(agent.evicted(6).words(), ElementsAre("join 6"));
  EXPECT_THAT(agent.round(6).words(), IsEmpty()) << "I5: that round is over";
}

TEST(AgentPolicy, InitReceivesTheResultOfAClosedJob) {
  Fixture good;
  EXPECT_THAT(good.found().quiet().succeeded().words(), ElementsAre("finish 0"));
  EXPECT_EQ(good.result().state, AgentState::kSucceeded) << "a spare, or a late node";
  Fixture bad;
  EXPECT_THAT(bad.found().quiet().failed(5, "m").words(), ElementsAre("finish 3"));
  EXPECT_EQ(bad.result().state, AgentState::kFailed);
  EXPECT_EQ(bad.result().message, "rank 5 on m failed");
  EXPECT_EQ(bad.result().job->node, "m");
}

TEST(AgentPolicy, InitFailsWhenItCannotJoin) {
  Fixture port;
  EXPECT_THAT(port.found().quiet().feed(LocalFault{kExitCannotServe, "port 1 is taken"}).words(),
              ElementsAre("leave", "finish 73"));
  EXPECT_EQ(port.result().message, "port 1 is taken");
  EXPECT_EQ(port.result().job, std::nullopt);
  Fixture refused;
  refused.found().feed(rdzv::Refused{{}, Status(StatusCode::kInvalidArgument, "nnodes differ")});
  EXPECT_EQ(refused.result().exit_code, kExitRejected);
  EXPECT_EQ(refused.result().message, "nnodes differ");
  Fixture late;
  late.found().feed(rdzv::TimedOut{{}, "1 of 2 nodes came"});
  EXPECT_EQ(late.result().exit_code, kExitJoinTimedOut);
  Fixture alone;
  EXPECT_THAT(alone.feed(RendezvousLost{kExitCoordinatorLost, "no listener"}).words(),
              ElementsAre("finish 77"));
  EXPECT_EQ(alone.result().message, "no listener");
}

TEST(AgentPolicy, InitStopsAtOnce) {
  Fixture early;
  EXPECT_THAT(early.stop(SIGINT).words(), ElementsAre("finish 130"));
  Fixture agent;
  EXPECT_THAT(agent.found().quiet().stop(SIGINT).words(), ElementsAre("leave", "finish 130"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
  EXPECT_THAT(agent.round(1).words(), IsEmpty()) << "after the end nothing may start";
}

TEST(AgentPolicy, InitBecomesUnknownWhenTheGuardianDies) {
  Fixture agent;
  EXPECT_THAT(agent.found().quiet().lost().words(), ElementsAre("leave", "finish 71"));
  EXPECT_EQ(agent.result().state, AgentState::kUnknown);
  EXPECT_EQ(agent.result().message, "the guardian died");
}

// --- HEALTHY -------------------------------------------------------------------------------------

TEST(AgentPolicy, HealthyReportsWhenAllWorkersRun) {
  Fixture agent;
  EXPECT_THAT(agent.found().round(1).quiet().started(1).words(), ElementsAre("report started"));
  EXPECT_THAT(agent.started(0).words(), ElementsAre("report started", "report running"));
}

TEST(AgentPolicy, HealthyIgnoresARepeatedRound) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().round(1).words(), IsEmpty());
  EXPECT_THAT(agent.restart(0).words(), IsEmpty());
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
}

TEST(AgentPolicy, HealthyRejectsARoundWithoutAJoin) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().round(2).words(), ElementsAre("leave", "finish 71"));
}

TEST(AgentPolicy, HealthyCountsADoneWorkerAndContinues) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().exit(0, exited(0)).words(), ElementsAre("report exited"));
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
}

TEST(AgentPolicy, HealthySendsDoneWhenAllProcessesOfDoneWorkersHaveEnded) {
  Fixture agent;
  agent.running().exit(0, exited(0)).quiet();
  EXPECT_THAT(agent.exit(1, exited(0)).words(), ElementsAre("report exited"))
      << "what the workers left behind may still be there";
  EXPECT_THAT(agent.gone().words(), ElementsAre("done 1"));
  EXPECT_EQ(agent.state(), AgentState::kSucceeded);
}

TEST(AgentPolicy, HealthyEndsTheWaitForProcessesOfDoneWorkersWhenTheRoundIsOver) {
  Fixture agent;
  agent.running().exit(0, exited(0)).exit(1, exited(0)).quiet();
  EXPECT_THAT(agent.restart(1).words(), ElementsAre("stop 15 5."));
  EXPECT_THAT(agent.gone().words(), ElementsAre("gone 1", "join 1"));
}

TEST(AgentPolicy, HealthyReportsAFailedWorkerAndDoesNotStopTheOthers) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().exit(1, exited(3, 7)).words(),
              ElementsAre("report exited", "failed 1"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
  const FailureReport expected{.local_rank = 1,
                               .rank = 1,
                               .exit_code = 3,
                               .message = "exited with code 3",
                               .at = at(7),
                               .evidence = FailureEvidence{}};
  EXPECT_EQ(std::get<rdzv::Failed>(agent.sent()).failure, expected);
}

TEST(AgentPolicy, HealthyStopsItsWorkersWhenTheRoundEndsElsewhere) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().restart(1).words(),
              ElementsAre("stop 15 5.", "report stopping"));
  EXPECT_EQ(agent.message(), "m was lost; stopping the workers, which have 5 s");
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
  EXPECT_THAT(agent.quiet().end_by_us().words(),
              ElementsAre("report exited", "report exited", "gone 1", "join 1"));
}

TEST(AgentPolicy, HealthyStopsItsWorkersWhenItWasEvictedAndJoinsAgain) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().evicted(3).words(),
              ElementsAre("stop 15 10", "report stopping"));
  EXPECT_THAT(agent.quiet().end_by_us().words(),
              ElementsAre("report exited", "report exited", "join 3"))
      << "no node waits for the report that its workers are gone";
}

TEST(AgentPolicy, HealthyStopsWhenTheJobIsClosed) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().failed(5, "m", 9).words(),
              ElementsAre("stop 15 10", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kFailed);
  EXPECT_THAT(agent.quiet().end_by_us().words(),
              ElementsAre("report exited", "report exited", "gone 1", "finish 9"));
  Fixture other;
  EXPECT_THAT(other.running().quiet().succeeded().words(),
              ElementsAre("stop 15 30", "report stopping"));
  EXPECT_THAT(other.quiet().end_by_us().words(),
              ElementsAre("report exited", "report exited", "gone 1", "finish 0"));
}

TEST(AgentPolicy, HealthyStopsWhenTheCoordinatorIsLost) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().feed(RendezvousLost{kExitCoordinatorLost, "gone"}).words(),
              ElementsAre("stop 15 30", "report stopping"));
  EXPECT_THAT(agent.quiet().end_by_us().words(),
              ElementsAre("report exited", "report exited", "finish 77"));
}

TEST(AgentPolicy, HealthyFailsWhenItsFilesCannotBeCreated) {
  Fixture agent;
  EXPECT_THAT(agent.found().round(1).quiet().feed(LocalFault{kExitCannotLog, "disk full"}).words(),
              ElementsAre("leave", "finish 74"));
}

TEST(AgentPolicy, HealthySendsLeaveOnRequestBeforeItsWorkersHaveEnded) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().stop(SIGHUP).words(),
              ElementsAre("leave", "stop 1 30", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kStopped);
  EXPECT_EQ(agent.message(), "asked to stop by signal 1 (SIGHUP); the workers have 30 s");
}

TEST(AgentPolicy, HealthyKeepsItsSuccessWhenARequestComesAfterTheLastExit) {
  Fixture agent;
  agent.running().exit(0, exited(0)).exit(1, exited(0)).quiet();
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 30", "report stopping"));
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 5.", "report stopping"));
  EXPECT_THAT(agent.gone().words(), ElementsAre("done 1", "leave", "finish 0"))
      << "all ranks of the job have succeeded";
}

TEST(AgentPolicy, HealthyIsStoppedAfterTheLastExitWhileOtherNodesWork) {
  Fixture agent;
  agent.running(2).exit(0, exited(0)).exit(1, exited(0)).stop().quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("done 1", "leave", "finish 143"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
}

TEST(AgentPolicy, HealthyBecomesUnknownWhenTheGuardianDies) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().lost().words(), ElementsAre("leave", "finish 71"));
  EXPECT_EQ(agent.result().state, AgentState::kUnknown);
}

TEST(AgentPolicy, HealthyRejectsAGroupEndBeforeItsWorkersEnd) {
  Fixture agent;
  EXPECT_THAT(agent.running().exit(0, exited(0)).quiet().gone().words(),
              ElementsAre("leave", "finish 71"));
  EXPECT_EQ(agent.result().state, AgentState::kUnknown);
}

// --- UNHEALTHY -----------------------------------------------------------------------------------

TEST(AgentPolicy, UnhealthyStopsTheOthersOnRestart) {
  Fixture agent;
  agent.running().exit(1, exited(3)).quiet();
  EXPECT_THAT(agent.restart(1).words(), ElementsAre("stop 15 5.", "report stopping"));
  EXPECT_EQ(agent.message(),
            "rank 1 (local rank 1, pid 1001) exited with code 3; stopping the other workers, which "
            "have 5 s");
  EXPECT_THAT(agent.restart(1).words(), IsEmpty()) << "once is enough";
}

TEST(AgentPolicy, UnhealthyStopsTheOthersItselfWithoutAnAnswer) {
  Fixture agent;
  agent.running().exit(1, exited(3)).quiet();
  EXPECT_THAT(agent.wait().words(), ElementsAre("stop 15 10", "report stopping"));
  agent.exit(0, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("gone 1"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
  EXPECT_EQ(agent.policy().next_deadline(), std::nullopt);
  EXPECT_THAT(agent.restart(1).words(), ElementsAre("join 1"));
  EXPECT_EQ(agent.state(), AgentState::kInit);
}

TEST(AgentPolicy, UnhealthyStopsNoWorkerWhenTheLastOneFailed) {
  Fixture agent;
  agent.running().exit(0, exited(0)).exit(1, exited(3)).quiet();
  EXPECT_THAT(agent.restart(1).words(), IsEmpty());
  EXPECT_THAT(agent.gone().words(), ElementsAre("gone 1", "join 1"));
}

TEST(AgentPolicy, UnhealthyStillReportsStartedWorkers) {
  Fixture agent;
  agent.found().round(1).started(0).exit(0, exited(1)).quiet();
  EXPECT_THAT(agent.started(1).words(), ElementsAre("report started"))
      << "a group with a failed worker never runs as a whole";
}

TEST(AgentPolicy, UnhealthySendsAnEarlierFailureThanTheSentOne) {
  Fixture agent;
  agent.running().exit(1, exited(3, 9)).quiet();
  EXPECT_THAT(agent.exit(0, killed(SIGSEGV, 8)).words(), ElementsAre("report exited", "failed 1"));
  EXPECT_EQ(std::get<rdzv::Failed>(agent.sent()).failure.rank, 0);
  Fixture later;
  later.running().exit(1, exited(3, 9)).quiet();
  EXPECT_THAT(later.exit(0, killed(SIGSEGV, 10)).words(), ElementsAre("report exited"));
}

TEST(AgentPolicy, UnhealthyCollectsFailuresByTheTimeOfExit) {
  Fixture agent;
  agent.running().exit(1, exited(3, 9)).exit(0, killed(SIGSEGV, 8)).restart(1).gone();
  agent.failed(0, "n", 128 + SIGSEGV);
  ASSERT_EQ(agent.result().failures.size(), 2u);
  EXPECT_EQ(agent.result().failures[0].rank, 0);
  EXPECT_EQ(agent.result().failures[1].rank, 1);
  EXPECT_EQ(agent.result().exit_code, 128 + SIGSEGV);
  EXPECT_EQ(agent.result().message,
            "rank 0 (local rank 0, pid 1000) killed by signal 11 (SIGSEGV)");
}

TEST(AgentPolicy, UnhealthyRecordsNoFailureOfAStoppedWorker) {
  Fixture agent;
  agent.running().exit(1, exited(3, 9)).exit(0, stopped(killed(SIGTERM, 8))).restart(1).gone();
  agent.failed(1);
  ASSERT_EQ(agent.result().failures.size(), 1u);
  EXPECT_EQ(agent.result().exit_code, 3);
}

TEST(AgentPolicy, UnhealthyAcceptsADoneWorker) {
  Fixture agent;
  EXPECT_THAT(agent.running().exit(1, exited(3)).quiet().exit(0, exited(0)).words(),
              ElementsAre("report exited"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
}

TEST(AgentPolicy, UnhealthyContinuesWithTheNextRound) {
  Fixture agent(2);
  agent.running().exit(1, exited(3)).exit(0, exited(4)).restart(1).gone().quiet();
  EXPECT_EQ(agent.state(), AgentState::kInit);
  EXPECT_THAT(agent.round(2, 1).words(), ElementsAre("report restarting", "start"));
  EXPECT_EQ(agent.message(),
            "rank 1 (local rank 1, pid 1001) exited with code 3; restarting, 1 of 2 restarts left");
  agent.exit(1, exited(5)).exit(0, exited(6)).restart(2).gone().failed(1, "n", 5);
  EXPECT_EQ(agent.result().exit_code, 5);
  EXPECT_EQ(agent.result().failures.size(), 2u) << "those of the first round are forgotten";
  EXPECT_THAT(agent.result().message, EndsWith("none of 2 restarts is left"));
}

TEST(AgentPolicy, UnhealthyReportsTheNumberOfRemainingNodes) {
  Fixture agent;
  agent.found().round(1, 0, 3, 2).restart(1).end_by_us().quiet();
  EXPECT_THAT(agent.round(2, 0, 2, 1).words(), ElementsAre("report restarting", "start"));
  EXPECT_EQ(agent.message(), "m was lost; restarting with 2 nodes");
  agent.restart(2).end_by_us();
  EXPECT_EQ(std::get<rdzv::Join>(agent.sent()).node.previous_rank, 1);
  EXPECT_EQ(std::get<rdzv::Join>(agent.sent()).node.highest_round, 2u);
}

TEST(AgentPolicy, UnhealthyFinishesWhenTheJobEnds) {
  Fixture agent;
  agent.running().exit(1, exited(3)).quiet();
  EXPECT_THAT(agent.failed(5, "m", 9).words(), ElementsAre("stop 15 10", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kFailed);
  agent.exit(0, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("gone 1", "finish 9"));
  EXPECT_EQ(agent.result().message, "rank 5 on m failed") << "all nodes name one cause";
  EXPECT_EQ(agent.result().failures.size(), 1u);
}

TEST(AgentPolicy, UnhealthyReportsTheEndOfTheJobWhileStopping) {
  Fixture agent;
  agent.running().exit(1, exited(3)).restart(1).quiet();
  EXPECT_THAT(agent.failed(1).words(), ElementsAre("report note"));
  EXPECT_EQ(agent.message(), "rank 1 (local rank 1, pid 1001) exited with code 3");
}

TEST(AgentPolicy, UnhealthyLeavesOnRequest) {
  Fixture agent(1);
  agent.running().exit(1, exited(3)).restart(1).quiet();
  EXPECT_THAT(agent.stop().words(), ElementsAre("leave", "stop 15 30", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kStopped);
  EXPECT_THAT(agent.exit(0, stopped(killed(SIGTERM))).quiet().gone().words(),
              ElementsAre("finish 143"));
  EXPECT_EQ(agent.result().message,
            "stopped by signal 15 (SIGTERM); before that rank 1 (local rank 1, pid 1001) exited "
            "with code 3");
}

TEST(AgentPolicy, UnhealthyBecomesUnknownWhenTheGuardianDies) {
  Fixture agent(1);
  EXPECT_THAT(agent.running().exit(1, exited(3)).quiet().lost().words(),
              ElementsAre("leave", "finish 71"));
}

// --- STOPPED and FAILED --------------------------------------------------------------------------

TEST(AgentPolicy, StoppedWaitsUntilAllProcessesHaveEnded) {
  Fixture agent(5);
  agent.found().round(1).stop(SIGINT).quiet();
  EXPECT_THAT(agent.started(0).words(), ElementsAre("report started"));
  EXPECT_THAT(agent.exit(0, stopped(exited(1))).words(), ElementsAre("report exited"));
  EXPECT_THAT(agent.exit(1, exited(0)).words(), ElementsAre("report exited"));
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 130"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
  EXPECT_EQ(agent.result().message, "stopped by signal 2 (SIGINT)");
  EXPECT_THAT(agent.result().failures, IsEmpty());
}

TEST(AgentPolicy, StoppedShortensTheGraceOnASecondRequestAndKillsOnAThird) {
  Fixture agent;
  EXPECT_THAT(agent.running().stop(SIGTERM).quiet().stop(SIGINT).words(),
              ElementsAre("stop 2 5.", "report stopping"));
  EXPECT_EQ(agent.message(),
            "asked to stop by signal 2 (SIGINT) again; the workers have 5 s at most");
  EXPECT_THAT(agent.stop(SIGINT).words(), ElementsAre("stop 9 0.", "report stopping"));
  agent.exit(0, stopped(killed(SIGKILL))).exit(1, stopped(killed(SIGKILL))).gone();
  EXPECT_EQ(agent.result().exit_code, 128 + SIGTERM) << "the first request names the reason";
}

TEST(AgentPolicy, StoppedIgnoresLaterEvents) {
  Fixture agent(5);
  agent.running().stop().exit(0, exited(7)).quiet();
  agent.restart(1).evicted(1).round(2).succeeded().failed(1);
  EXPECT_THAT(agent.words(), IsEmpty());
  agent.exit(1, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 143"));
  ASSERT_EQ(agent.result().failures.size(), 1u);
}

TEST(AgentPolicy, StoppedBecomesUnknownWhenTheGuardianDies) {
  Fixture agent;
  EXPECT_THAT(agent.running().stop().quiet().lost().words(), ElementsAre("leave", "finish 71"));
}

TEST(AgentPolicy, FailedKeepsTheFirstResultAndKillsOnRequest) {
  Fixture agent;
  agent.running().exit(1, exited(3)).restart(1).failed(1).quiet();
  EXPECT_THAT(agent.succeeded().restart(1).round(2).words(), IsEmpty());
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 30", "report stopping"));
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 5.", "report stopping"));
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 9 0.", "report stopping"));
  EXPECT_THAT(agent.exit(0, stopped(killed(SIGKILL))).quiet().gone().words(),
              ElementsAre("gone 1", "finish 3"));
}

// --- SUCCEEDED -----------------------------------------------------------------------------------

TEST(AgentPolicy, SucceededFinishesWhenTheJobEnds) {
  Fixture agent;
  EXPECT_THAT(agent.done().quiet().succeeded().words(), ElementsAre("finish 0"));
  EXPECT_EQ(agent.result().state, AgentState::kSucceeded);
  EXPECT_EQ(agent.result().message, "");
  Fixture bad;
  EXPECT_THAT(bad.done().quiet().failed(2, "m").words(), ElementsAre("finish 3"));
  EXPECT_EQ(bad.result().state, AgentState::kFailed);
}

TEST(AgentPolicy, SucceededNamesTheNodesThatWereLost) {
  Fixture agent;
  JobResult result;
  result.message = "all nodes have finished; m was lost after that";
  result.lost = {"m"};
  EXPECT_EQ(agent.done().closed(result).result().exit_code, 0);
  EXPECT_EQ(agent.result().message, result.message);
}

TEST(AgentPolicy, SucceededJoinsAgainOnRestart) {
  Fixture agent(1);
  EXPECT_THAT(agent.done().quiet().restart(1, "rank 2 on m exited with code 1").words(),
              ElementsAre("report note", "join 1"));
  EXPECT_EQ(agent.message(), "called back: rank 2 on m exited with code 1");
  EXPECT_THAT(agent.round(2, 1, 2).words(), ElementsAre("report restarting", "start"));
  EXPECT_EQ(agent.message(),
            "rank 2 on m exited with code 1; restarting with 2 nodes, 0 of 1 restarts left");
}

TEST(AgentPolicy, SucceededLeavesOnRequestWithTheSignal) {
  Fixture asked;
  EXPECT_THAT(asked.done().quiet().stop().words(), ElementsAre("leave", "finish 143"));
  EXPECT_EQ(asked.result().state, AgentState::kStopped);
}

TEST(AgentPolicy, SucceededLeavesWithItsSuccessWhenTheBarrierExpires) {
  Fixture tired(0, milliseconds(1500));
  tired.done().quiet();
  EXPECT_EQ(tired.policy().next_deadline(), at(100) + milliseconds(1500));
  EXPECT_THAT(tired.wait().words(), ElementsAre("leave", "finish 0"));
  Fixture patient;
  EXPECT_EQ(patient.done().policy().next_deadline(), std::nullopt);
}

TEST(AgentPolicy, SucceededFailsWhenTheCoordinatorIsLost) {
  Fixture agent;
  EXPECT_THAT(agent.done().quiet().feed(RendezvousLost{kExitCoordinatorLost, "gone"}).words(),
              ElementsAre("finish 77"));
}

TEST(AgentPolicy, FinalStatesIgnoreEvents) {
  Fixture agent;
  agent.done().succeeded().quiet();
  agent.stop().lost().gone().round(2).restart(1);
  EXPECT_THAT(agent.words(), IsEmpty());
  EXPECT_EQ(agent.state(), AgentState::kSucceeded);
}

// --- Causes --------------------------------------------------------------------------------------

struct ResultCase {
  const char* name;
  JobOutcome outcome;
  JobCause cause;
  int said_code;
  int exit_code;
};

class ResultCode : public ::testing::TestWithParam<ResultCase> {};

TEST_P(ResultCode, DependsOnTheCause) {
  JobResult result;
  result.outcome = GetParam().outcome;
  result.cause = GetParam().cause;
  result.exit_code = GetParam().said_code;
  result.message = "why";
  Fixture agent;
  agent.found().closed(result);
  EXPECT_EQ(agent.result().exit_code, GetParam().exit_code);
  EXPECT_EQ(agent.result().message, "why");
  EXPECT_EQ(agent.result().job, result);
}

INSTANTIATE_TEST_SUITE_P(
    AgentPolicy, ResultCode,
    ::testing::Values(
        ResultCase{"worker", JobOutcome::kFailed, JobCause::kWorker, 139, 139},
        ResultCase{"node_lost", JobOutcome::kFailed, JobCause::kNodeLost, 0, kExitNodeLost},
        ResultCase{"too_few", JobOutcome::kFailed, JobCause::kTooFewNodes, 0, kExitNodeLost},
        ResultCase{"requested", JobOutcome::kClosed, JobCause::kRequested, 42, 42},
        ResultCase{"closed", JobOutcome::kClosed, JobCause::kRequested, 0, kExitJobClosed}),
    [](const auto& test) { return test.param.name; });

struct NotStartedCase {
  const char* name;
  WorkerExit exit;
  int exit_code;
  bool is_retried;
};

class NotStarted : public ::testing::TestWithParam<NotStartedCase> {};

TEST_P(NotStarted, IsRetriedOnlyIfARetryMayHelp) {
  const NotStartedCase& param = GetParam();
  Fixture agent(1);
  agent.found().round(1).quiet().exit(0, param.exit);
  const std::string code = std::to_string(param.exit_code);
  EXPECT_THAT(agent.words(),
              ElementsAre("report exited", param.is_retried ? "failed 1" : "close " + code));
  agent.exit(1, stopped(killed(SIGTERM))).gone().failed(0, "n", param.exit_code);
  EXPECT_EQ(agent.result().exit_code, param.exit_code);
  EXPECT_THAT(agent.result().message, HasSubstr("could not be started"));
  EXPECT_THAT(agent.result().message,
              HasSubstr(param.is_retried ? "none of 1 restarts" : "a restart would not help"));
}

INSTANTIATE_TEST_SUITE_P(
    AgentPolicy, NotStarted,
    ::testing::Values(NotStartedCase{"enoent", not_started(ENOENT), kExitCannotStart, false},
                      NotStartedCase{"eacces", not_started(EACCES), kExitCannotStart, false},
                      NotStartedCase{"enoexec", not_started(ENOEXEC), kExitCannotStart, false},
                      NotStartedCase{"eagain", not_started(EAGAIN, "fork"), kExitCannotStart, true},
                      NotStartedCase{"open", not_started(EACCES, "open"), kExitCannotLog, false}),
    [](const auto& test) { return test.param.name; });

TEST(AgentPolicy, RepeatedFailureTakesPrecedenceOverAnEarlierOne) {
  Fixture agent(3);
  agent.found().round(1).exit(0, exited(1, 1)).quiet();
  EXPECT_THAT(agent.exit(1, not_started(ENOENT, "exec", 2)).words(),
              ElementsAre("report exited", "close 72"));
}

TEST(AgentPolicy, UnknownExitIsAFailure) {
  Fixture agent;
  agent.running().exit(0, WorkerExit{}).restart(1).exit(1, stopped(killed(SIGTERM))).gone();
  EXPECT_EQ(std::get<rdzv::Join>(agent.sent()).node.highest_round, 1u);
  agent.failed(0, "n", 1);
  EXPECT_EQ(agent.result().state, AgentState::kFailed);
  EXPECT_EQ(agent.result().failures.size(), 1u);
}

// Properties of the whole table: every state but the last handles the loss of supervision and
// reports progress messages, and only contradictory events lead to UNKNOWN.
TEST(AgentPolicyTable, IsConsistent) {
  const PolicyTable& table = policy_table();
  for (std::size_t state = 0; state < kAgentStates; ++state) {
    const bool is_unknown = state == static_cast<std::size_t>(AgentState::kUnknown);
    for (const PolicyEdge& edge : table[state]) {
      const bool is_lost = edge.next == AgentState::kUnknown;
      EXPECT_EQ(is_lost, is_unknown || edge.step == PolicyStep::kLose);
      if (edge.step == PolicyStep::kIgnore) {
        EXPECT_EQ(static_cast<std::size_t>(edge.next), state);
      }
    }
    const auto lost = static_cast<std::size_t>(PolicyInput::kSupervisionLost);
    EXPECT_EQ(table[state][lost].step, is_unknown ? PolicyStep::kIgnore : PolicyStep::kLose);
    const auto note = static_cast<std::size_t>(PolicyInput::kProgress);
    EXPECT_EQ(table[state][note].step, is_unknown ? PolicyStep::kIgnore : PolicyStep::kReport);
  }
}

TEST(AgentState, HasTorchsNames) {
  EXPECT_STREQ(to_string(AgentState::kInit), "INIT");
  EXPECT_STREQ(to_string(AgentState::kHealthy), "HEALTHY");
  EXPECT_STREQ(to_string(AgentState::kUnhealthy), "UNHEALTHY");
  EXPECT_STREQ(to_string(AgentState::kStopped), "STOPPED");
  EXPECT_STREQ(to_string(AgentState::kSucceeded), "SUCCEEDED");
  EXPECT_STREQ(to_string(AgentState::kFailed), "FAILED");
  EXPECT_STREQ(to_string(AgentState::kUnknown), "UNKNOWN");
}

}  // namespace
}  // namespace elastic::core
