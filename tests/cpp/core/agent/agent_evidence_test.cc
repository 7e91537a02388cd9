// What the agent's policy does with evidence of a failure besides the exit, and with its exit code.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "core/agent/agent_policy_harness.h"

namespace elastic::core {
namespace {

using namespace agent_policy_test;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(AgentPolicy, UnhealthySendsAWorkerThatHadFailedBeforeItWasStopped) {
  Fixture agent;
  agent.running(2).restart(1).quiet();
  EXPECT_THAT(agent.evidence(1, WorkerExit{}, 2, "KeyError: 1").words(), ElementsAre("failed 1"))
      << "it still runs";
  const FailureReport first = std::get<rdzv::Failed>(agent.sent()).failure;
  EXPECT_EQ(first.message, "raised KeyError: 1, and was stopped before it ended");
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_EQ(first.at, at(2));
  agent.exit(1, stopped(killed(SIGTERM, 5))).quiet();
  EXPECT_THAT(agent.evidence(1, stopped(exited(9, 5)), 2, "KeyError: 1").words(),
              ElementsAre("failed 1"));
  const FailureReport second = std::get<rdzv::Failed>(agent.sent()).failure;
  EXPECT_EQ(second.message, "exited with code 9") << "it ended by itself";
  EXPECT_EQ(second.at, at(2));
}

TEST(AgentPolicy, UnhealthyOrdersFailuresByTheirEarliestEvidence) {
  Fixture agent;
  agent.running().exit(0, exited(3, 5)).exit(1, exited(4, 6)).quiet();
  EXPECT_THAT(agent.evidence(1, exited(4, 6), 2).words(), ElementsAre("failed 1"));
  EXPECT_THAT(agent.evidence(0, exited(3, 5), 4).words(), IsEmpty()) << "rank 1 is the cause";
  agent.failed(1, "n", 4).gone();
  ASSERT_EQ(agent.result().failures.size(), 2u);
  EXPECT_EQ(agent.result().failures[0].rank, 1);
  EXPECT_EQ(agent.result().failures[0].failed_at, at(2));
  EXPECT_EQ(agent.result().failures[1].failed_at, at(4));
}

// The memory of a large process that is killed is freed for seconds before its exit is known.
TEST(AgentPolicy, LossOfAPeerIsNoCauseIfAnotherWorkerFailed) {
  constexpr const char* kLostPeer = "RuntimeError: [pair.cc:5] Connection closed by peer";
  Fixture agent;
  agent.running(2).exit(1, exited(1, 5)).evidence(1, exited(1, 5), 5, kLostPeer).quiet();
  EXPECT_THAT(agent.exit(0, killed(SIGKILL, 7)).words(), ElementsAre("report exited", "failed 1"));
  EXPECT_EQ(std::get<rdzv::Failed>(agent.sent()).failure.rank, 0);
  agent.gone().failed(0, "n", 137);
  EXPECT_EQ(agent.result().failures[0].rank, 0);
  Fixture late;
  late.running(2).exit(1, exited(1, 5)).exit(0, killed(SIGKILL, 7)).quiet();
  EXPECT_THAT(late.evidence(1, exited(1, 5), 5, kLostPeer).words(), ElementsAre("failed 1"));
  EXPECT_EQ(std::get<rdzv::Failed>(late.sent()).failure.rank, 0) << "found by what is known now";
}

TEST(AgentPolicy, RestartThatMayNotHelpSaysSo) {
  FailureFacts facts;
  facts.evidence.failure_class = FailureClass::kUserInput;
  Fixture agent(2);
  agent.running().feed(WorkerExited{0, 1000, exited(1), facts}).restart(1);
  agent.exit(1, stopped(killed(SIGTERM))).gone().quiet();
  EXPECT_THAT(agent.round(2, 1).words(), ElementsAre("report restarting", "start"));
  EXPECT_THAT(agent.message(), EndsWith("; restarting, 1 of 2 restarts left; the command or the "
                                        "script looks wrong, so a restart may not help"));
}

TEST(AgentPolicy, ReportsTheSameFailureInSeveralRounds) {
  Fixture agent(5);
  const auto fail = [&](std::uint64_t round, const std::string& fingerprint, int second = 107) {
    const WorkerExit exit = exited(3, second);
    agent.started(0).started(1).exit(0, exit).evidence(0, exit, second, "", fingerprint);
    const std::string message = std::get<rdzv::Failed>(agent.sent()).failure.message;
    agent.restart(round).exit(1, stopped(killed(SIGTERM))).gone();
    return message;
  };
  agent.found().round(1);
  EXPECT_EQ(fail(1, "f"), "exited with code 3");
  agent.round(2, 1);
  EXPECT_THAT(fail(2, "f"),
              StartsWith("exited with code 3; the same failure in 2 rounds in a row"));
  agent.round(3, 2);
  EXPECT_THAT(fail(3, "f"), HasSubstr("in 3 rounds in a row, each within 7 s of its start"));
  agent.round(4, 3);
  EXPECT_EQ(fail(4, "other", 102), "exited with code 3");
  agent.round(5, 4);
  EXPECT_THAT(fail(5, "other", 102),
              HasSubstr("in 2 rounds in a row, each within 2 s of its start"))
      << "the rounds of the other failure do not count";
}

TEST(AgentPolicy, CodeWithoutARestartEndsTheJob) {
  Fixture agent(1);
  agent.found().round(1).quiet().exit(0, exited(Fixture::kNoRestartCode));
  EXPECT_THAT(agent.words(), ElementsAre("report exited", "close 97"));
  agent.exit(1, stopped(killed(SIGTERM))).gone().failed(0, "n", Fixture::kNoRestartCode);
  EXPECT_EQ(agent.result().exit_code, Fixture::kNoRestartCode);
  EXPECT_THAT(agent.result().message, HasSubstr("that code ends the job (--no-restart-codes)"));
  Fixture other(1);
  other.found().round(1).quiet().exit(0, exited(Fixture::kNoRestartCode + 1));
  EXPECT_THAT(other.words(), ElementsAre("report exited", "failed 1"));
}

TEST(AgentPolicy, CodeOfABadNodeMakesTheNodeLeave) {
  Fixture agent(1);
  agent.found().round(1).quiet().exit(0, exited(Fixture::kBadNodeCode));
  EXPECT_EQ(agent.state(), AgentState::kFailed);
  EXPECT_THAT(agent.words(), ElementsAre("report exited", "leave", "report notice", "stop 15 10",
                                         "report stopping"));
  EXPECT_THAT(agent.message(), HasSubstr("leaving the job; stopping the other workers"));
  agent.exit(1, stopped(killed(SIGTERM))).gone();
  EXPECT_THAT(agent.words(), ElementsAre("report exited", "finish 90"));
  EXPECT_THAT(agent.result().message, HasSubstr("exited with code 90; that code means a bad node"));
  EXPECT_EQ(agent.result().failures.size(), 1U);
  EXPECT_EQ(agent.result().job, std::nullopt);
}

TEST(AgentPolicy, CodeOfABadNodeCountsAlsoAfterAnotherFailureHere) {
  Fixture agent(1);
  agent.found().round(1).quiet().exit(0, exited(3));
  EXPECT_THAT(agent.words(), ElementsAre("report exited", "failed 1"));
  agent.exit(1, exited(Fixture::kBadNodeCode)).gone();
  EXPECT_THAT(agent.words(), ElementsAre("report exited", "leave", "report notice", "finish 90"));
  EXPECT_EQ(agent.result().failures.size(), 2U);
  // Not if the agent has stopped that worker: its code means nothing then.
  Fixture other(1);
  other.found().round(1).exit(0, exited(3)).restart(1).quiet();
  other.exit(1, stopped(exited(Fixture::kBadNodeCode)));
  EXPECT_THAT(other.words(), ElementsAre("report exited"));
}

}  // namespace
}  // namespace elastic::core
