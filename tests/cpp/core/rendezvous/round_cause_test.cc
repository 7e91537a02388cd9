// Why a round ended: what its workers are told, and those of the next round.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/rendezvous/rendezvous_harness.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

using test::Job;
using test::nnodes;
using namespace std::chrono_literals;  // NOLINT: every test uses durations

JobSettings patient(int min_nodes, int max_nodes) {
  JobSettings settings = nnodes(min_nodes, max_nodes);
  settings.max_restarts = 100;
  return settings;
}

// How a round of two nodes ends.
struct Ending {
  const char* error;
  Duration age;  // of the round
  int exit_code;
  const char* node;
  int same_failures;
};

void fail_round(Job* job, const Ending& ending) {
  job->pass(ending.age);
  for (const char* name : {"a", "b"}) job->beat(name);
  const auto sent = job->fail(ending.node, ending.exit_code, 0s, ending.error);
  for (const char* name : {"a", "b"}) {
    const auto* restart = job->action_to<rdzv::Restart>(sent, name);
    ASSERT_NE(restart, nullptr);
    ASSERT_TRUE(restart->why);
    EXPECT_EQ(restart->why->cause, StopCause::kWorkerFailed);
    EXPECT_EQ(restart->why->node, ending.node);
    EXPECT_EQ(restart->why->exit_code, ending.exit_code);
  }
  job->rejoin("a");
  job->rejoin("b");
}

TEST(RoundCause, CountsRoundsInARowThatEndByTheSameFailureSoonAfterTheirStart) {
  Job job(patient(2, 2));
  job.join_all({"a", "b"});
  EXPECT_EQ(job.share("a").cause, nullptr);
  const std::vector<Ending> endings = {
      {"ValueError: step 10 of 77", 1h, 1, "a", 0},   // it has worked before
      {"ValueError: step 11 of 78", 10s, 1, "b", 1},  // another rank, and other numbers
      {"ValueError: step 12 of 79", 60s, 1, "a", 2},
      {"ValueError: step 12 of 79", 61s, 1, "a", 0},
      {"ValueError: step 12 of 79", 1s, 1, "a", 1},
      {"KeyError: 'x'", 1s, 1, "a", 1},
      {"KeyError: 'x'", 1s, 2, "a", 1},
      {"KeyError: 'x'", 1s, 2, "a", 2},
      {"KeyError: 'x'", 1s, 2, "a", 3},
  };
  for (const Ending& ending : endings) {
    SCOPED_TRACE(ending.error);
    fail_round(&job, ending);
    ASSERT_NE(job.share("a").cause, nullptr);
    EXPECT_EQ(*job.share("a").cause, *job.share("b").cause);
    EXPECT_EQ(job.share("a").cause->same_failures, ending.same_failures);
    EXPECT_EQ(job.share("a").cause->why.node, ending.node);
  }
}

TEST(RoundCause, AnotherEndOfARoundEndsTheRow) {
  Job job(patient(1, 2));
  job.join_all({"a", "b"});
  fail_round(&job, {"E", 1s, 1, "a", 1});
  const auto sent = job.leave("b");
  const auto* restart = job.action_to<rdzv::Restart>(sent, "a");
  ASSERT_TRUE(restart != nullptr && restart->why);
  EXPECT_EQ(restart->why->describe(), "node-left; node=b; reason=b left (SIGTERM)");
  job.rejoin("a");
  EXPECT_EQ(job.share("a").cause->why.cause, StopCause::kNodeLeft);
  EXPECT_EQ(job.share("a").cause->same_failures, 0);
  job.fail("a", 1, 0s, "E");
  job.rejoin("a");
  EXPECT_EQ(job.share("a").cause->same_failures, 1);
}

TEST(RoundCause, LossOfANodeExplainsFailuresOfItsPeers) {
  Job job(patient(1, 2));
  job.join_all({"a", "b"});
  job.fail("a", 1, 0s, "RuntimeError: Connection closed by peer");
  job.cut("b");
  job.pass_and_tick(1s);
  job.rejoin("a");
  ASSERT_NE(job.share("a").cause, nullptr);
  const StopReason& why = job.share("a").cause->why;
  EXPECT_EQ(why.cause, StopCause::kNodeLost);
  EXPECT_EQ(why.node, "b");
  EXPECT_EQ(why.rank, -1);
  EXPECT_EQ(why.failure_class, FailureClass::kInfrastructure);
  EXPECT_EQ(job.share("a").cause->same_failures, 0);
}

TEST(RoundCause, GrowthIsAChangeOfTheMembers) {
  Job job(patient(1, 2));
  job.join("a");
  job.pass(30s);
  job.beat("a");
  job.tick();
  const auto sent = job.join("b");
  const auto* restart = job.action_to<rdzv::Restart>(sent, "a");
  ASSERT_TRUE(restart != nullptr && restart->why);
  EXPECT_EQ(restart->why->describe(), "members-changed; reason=1 more node has joined");
  job.rejoin("a");
  ASSERT_NE(job.share("b").cause, nullptr);
  EXPECT_EQ(job.share("b").cause->why.cause, StopCause::kMembersChanged);
}

TEST(RoundCause, HangIsNamed) {
  Job job(patient(1, 1));
  job.join("a");
  FailureReport failure{.rank = 0, .exit_code = 137, .message = "killed", .at = job.now()};
  failure.evidence.emplace();
  failure.evidence->failure_class = FailureClass::kInfrastructure;
  failure.evidence->cause = FailureCause::kHang;
  const auto sent = job.step(rdzv::Failed{job.id("a"), job.round(), failure});
  const auto* restart = job.action_to<rdzv::Restart>(sent, "a");
  ASSERT_TRUE(restart != nullptr && restart->why);
  EXPECT_EQ(restart->why->describe(),
            "hang; rank=0; node=a; exit_code=137; class=infrastructure; reason=rank 0 on a killed");
}

TEST(RoundCause, ANodeThatASignalStopsIsPreempted) {
  for (const int exit_code : {0, 42, 143}) {
    Job job(patient(1, 2));
    job.join_all({"a", "b"});
    const auto sent = job.step(rdzv::Leave{job.id("b"), "why", exit_code});
    const auto* restart = job.action_to<rdzv::Restart>(sent, "a");
    ASSERT_TRUE(restart != nullptr && restart->why);
    EXPECT_EQ(restart->why->cause, exit_code == 143 ? StopCause::kPreempted : StopCause::kNodeLeft);
  }
}

// It has no state but what the nodes hold.
TEST(RoundCause, OutlivesACoordinatorThatIsRestarted) {
  Job job(patient(2, 2));
  job.join_all({"a", "b"});
  fail_round(&job, {"E", 1s, 1, "a", 1});
  fail_round(&job, {"E", 1s, 1, "a", 2});
  job.restart_coordinator();
  for (const char* name : {"a", "b"}) job.resume(name, rdzv::NodePhase::kWorking);
  job.leave("b");
  job.node("c");
  job.rejoin("a");
  job.join("c");
  job.pass_and_tick(3s);
  ASSERT_NE(job.share("a").cause, nullptr);
  EXPECT_EQ(job.share("a").cause->why.cause, StopCause::kNodeLeft);
}

}  // namespace
}  // namespace elastic::core
