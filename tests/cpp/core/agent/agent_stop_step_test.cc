// The result of an agent whose workers stopped at an agreed step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/agent/agent_policy_harness.h"

namespace elastic::core {
namespace {

using namespace agent_policy_test;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

WorkerExit stopped_at(std::int64_t step) {
  WorkerExit exit = exited(0);
  exit.stop_step = step;
  return exit;
}

TEST(AgentPolicy, JobThatStoppedAtAStepIsStopped) {
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
  result.exit_code = kExitStoppedAtStep;
  result.message = "stopped at step 7 on every rank, resumable";
  Fixture agent;
  agent.running(2).exit(0, stopped_at(7)).exit(1, stopped_at(7)).closed(result).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("gone 1", "finish 80"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
  EXPECT_EQ(agent.result().message, result.message);
}

// For example an abort of a collective at the interpreter's exit, after the state was saved.
TEST(AgentPolicy, WorkerThatFailsAfterItHasStoppedEndsNoRound) {
  WorkerExit aborted;
  aborted.kind = ExitKind::kSignaled;
  aborted.signal = 6;
  aborted.stop_step = 7;
  Fixture agent;
  agent.running(2).exit(0, aborted);
  EXPECT_THAT(agent.words(), Not(Contains(HasSubstr("fail"))));
  EXPECT_THAT(agent.exit(1, stopped_at(7)).gone().words(), Contains("done 1"));
}

// A coordinator that follows a lost one may not know that the workers were told to stop.
TEST(AgentPolicy, StoppedWorkersAreNotReportedAsSuccess) {
  Fixture agent;
  agent.running(2).exit(0, stopped_at(7)).exit(1, exited(0)).gone().quiet();
  EXPECT_THAT(agent.succeeded().words(), ElementsAre("finish 80"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
  EXPECT_THAT(agent.result().message, HasSubstr("stopped at step 7, resumable"));
  Fixture alone(0, std::chrono::milliseconds(1500));
  alone.running().exit(0, stopped_at(7)).exit(1, stopped_at(7)).gone().quiet();
  EXPECT_THAT(alone.wait().words(), ElementsAre("leave", "finish 80"));
}

// The others continue: its workers are not stopped, and the node is no member any more.
TEST(AgentPolicy, NodeThatLeavesAtAStepWaitsForItsWorkersAndSucceeds) {
  Fixture agent;
  EXPECT_THAT(agent.running(2).quiet().feed(LeaveAtStep{7}).words(), ElementsAre("leave"));
  EXPECT_EQ(agent.state(), AgentState::kStopped);
  EXPECT_THAT(agent.restart(1).words(), ElementsAre()) << "of a round that it has left";
  agent.exit(0, stopped_at(7)).exit(1, stopped_at(7)).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 0"));
  EXPECT_EQ(agent.result().message, "left the job at step 7, as agreed");
}

TEST(AgentPolicy, NodeWhoseWorkersAreKilledWhileTheySaveDoesNotSucceed) {
  Fixture agent;
  agent.running(2).feed(LeaveAtStep{7}).quiet();
  agent.stop().exit(0, stopped_at(7)).exit(1, exited(1)).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 143"));
  EXPECT_THAT(agent.result().message, HasSubstr("as agreed; then its workers were stopped by"));
}

TEST(AgentPolicy, NodeWhoseWorkerFailsAfterItHasLeftDoesNotSucceed) {
  WorkerExit not_saved = stopped_at(7);
  not_saved.code = 5;
  for (const WorkerExit& exit : {not_saved, exited(5)}) {
    Fixture agent;
    agent.running(2).feed(LeaveAtStep{7}).exit(0, stopped_at(7)).exit(1, exit).quiet();
    EXPECT_THAT(agent.gone().words(), ElementsAre("finish 5"));
    EXPECT_THAT(agent.result().message,
                HasSubstr("left the job at step 7, as agreed; then rank 1"));
  }
}

TEST(AgentPolicy, OrderToLeaveIsTooLateForARoundThatHasFailed) {
  Fixture agent(1);
  agent.running(2).exit(0, exited(3)).quiet();
  EXPECT_THAT(agent.feed(LeaveAtStep{7}).words(), ElementsAre());
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
}

TEST(AgentPolicy, StopOfAnEarlierRoundIsForgotten) {
  Fixture agent;
  agent.running().exit(0, stopped_at(7)).exit(1, exited(3)).restart(1).gone().quiet();
  agent.round(2, 1).started(0).started(1).exit(0, exited(0)).exit(1, exited(0)).gone().quiet();
  EXPECT_THAT(agent.succeeded().words(), ElementsAre("finish 0"));
}

}  // namespace
}  // namespace elastic::core
