// The agent's policy where workers are started before their node joins, and get their first round
// as workers that are kept get the next one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "core/agent/agent_policy.h"
#include "core/agent/agent_policy_harness.h"

namespace elastic::core {
namespace {

using namespace agent_policy_test;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct PreparingFixture : Fixture {
  PreparingFixture() : Fixture(3, std::nullopt, seconds(5), seconds(70)) {}
  PreparingFixture& preparing() {
    found().started(0).started(1).capable(0).quiet();
    return *this;
  }
  // Has joined, and its workers wait.
  PreparingFixture& prepared() {
    preparing().left(0).left(1).quiet();
    return *this;
  }
};

TEST(AgentPrepared, ANodeJoinsWhenItsWorkersWaitForTheirFirstRound) {
  PreparingFixture agent;
  EXPECT_THAT(agent.found().words(), ElementsAre("prepare", "report note"));
  EXPECT_THAT(agent.started(0).started(1).capable(0).capable(1).left(1).left(1).words(), IsEmpty());
  EXPECT_EQ(agent.state(), AgentState::kInit);
  EXPECT_THAT(agent.left(0).words(), ElementsAre("join 0"));
  EXPECT_EQ(agent.policy().next_deadline(), std::nullopt);
  EXPECT_THAT(agent.round(7, 0, 4, 3).words(), ElementsAre("continue 7"));
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
  EXPECT_THAT(agent.started(0).started(1).words(),
              ElementsAre("report started", "report started", "report running"));
  EXPECT_THAT(agent.restart(7).words(), ElementsAre("cut 7", "report stopping"))
      << "they are members as all others";
  EXPECT_THAT(agent.left(0).left(1).words(), ElementsAre("gone 7", "join 7"));
}

TEST(AgentPrepared, WorkersThatDoNotWaitInTimeStartWithTheRound) {
  PreparingFixture agent;
  agent.preparing().left(0).quiet();
  EXPECT_THAT(agent.wait().words(), ElementsAre("stop 15 10", "report notice"));
  EXPECT_EQ(
      agent.message(),
      "the workers did not wait for their round within 1 min 10 s; the workers are started again "
      "with the round");
  EXPECT_THAT(agent.left(1).exit(0, stopped(killed(SIGTERM))).exit(1, exited(1)).words(),
              IsEmpty());
  EXPECT_THAT(agent.gone().words(), ElementsAre("join 0"));
  EXPECT_THAT(agent.round(1).words(), ElementsAre("start"));
  EXPECT_THAT(agent.started(0).started(1).exit(0, exited(1)).words(),
              ElementsAre("report started", "report started", "report running", "report exited",
                          "failed 1"));
}

TEST(AgentPrepared, AWorkerThatEndsBeforeTheJoinIsNoFailureOfTheJob) {
  for (const WorkerExit& exit : {exited(3), exited(0), not_started(ENOENT)}) {
    PreparingFixture agent;
    EXPECT_THAT(agent.preparing().left(1).exit(0, exit).words(),
                ElementsAre("stop 15 10", "report notice"));
    EXPECT_THAT(agent.message(), HasSubstr("the worker of local rank 0 " + exit.describe()));
    EXPECT_THAT(agent.exit(1, stopped(killed(SIGTERM))).gone().words(), ElementsAre("join 0"));
    EXPECT_THAT(agent.round(1).words(), ElementsAre("start"));
  }
  PreparingFixture both;
  both.preparing().exit(0, exited(3)).quiet();
  EXPECT_THAT(both.exit(1, exited(3)).words(), IsEmpty());
  EXPECT_THAT(both.gone().words(), ElementsAre("join 0"));
}

TEST(AgentPrepared, AWorkerThatEndsWhileItWaitsFailsInItsRound) {
  PreparingFixture agent;
  EXPECT_THAT(agent.prepared().exit(1, killed(SIGKILL)).words(),
              ElementsAre("stop 15 10", "report stopping"));
  EXPECT_THAT(agent.round(2).words(), ElementsAre("continue 2", "report exited", "failed 2"));
  EXPECT_THAT(std::get<rdzv::Failed>(agent.sent()).failure.message,
              EndsWith(" while it waited for the round"));

  PreparingFixture all;
  all.prepared().exit(1, killed(SIGKILL)).exit(0, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(all.gone().words(), ElementsAre("report notice"));
  EXPECT_THAT(all.round(2).words(), ElementsAre("start"));
}

// Nothing is left behind, and the exit codes are those of a node without workers.
TEST(AgentPrepared, WhateverEndsTheNodeStopsItsWorkers) {
  struct Case {
    const char* name;
    PolicyEvent event;
    std::string code;
  };
  JobResult success;
  const Case cases[] = {
      {"SIGTERM", StopRequested{SIGTERM}, "143"},
      {"coordinator unreachable", RendezvousLost{kExitCoordinatorLost, "gone"}, "77"},
      {"refused", rdzv::Refused{{1, 2}, {StatusCode::kFailedPrecondition, "other settings"}}, "76"},
      {"too few nodes", rdzv::TimedOut{{1, 2}, "too few"}, "75"},
      {"job over", rdzv::Closed{{1, 2}, std::make_shared<const JobResult>(success)}, "0"},
  };
  for (const bool has_joined : {false, true}) {
    for (const Case& one : cases) {
      SCOPED_TRACE(std::string(one.name) + (has_joined ? ", joined" : ""));
      PreparingFixture agent;
      has_joined ? agent.prepared() : agent.preparing();
      const auto first = agent.feed(one.event).words();
      EXPECT_THAT(first, ::testing::Contains(::testing::StartsWith("stop 15 ")));
      EXPECT_THAT(agent.exit(0, exited(1)).exit(1, stopped(killed(SIGTERM))).words(), IsEmpty());
      EXPECT_THAT(agent.gone().words(), ElementsAre("finish " + one.code));
      EXPECT_THAT(agent.result().failures, IsEmpty());
    }
  }
  PreparingFixture no_files;
  EXPECT_THAT(no_files.found().quiet().feed(LocalFault{kExitCannotLog, "disk full"}).words(),
              ElementsAre("finish 74"));
}

}  // namespace
}  // namespace elastic::core
