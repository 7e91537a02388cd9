// The table of the agent's policy. The stories are in tests/data/scenarios/agent.

#include <gtest/gtest.h>

#include "core/agent/agent_policy.h"

namespace elastic::core {
namespace {

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

TEST(ExitCode, OfAJobIsThatOfItsAgents) {
  const auto code = [](JobOutcome outcome, JobCause cause, int exit_code) {
    return exit_code_of({.outcome = outcome, .cause = cause, .exit_code = exit_code});
  };
  EXPECT_EQ(code(JobOutcome::kSucceeded, JobCause::kNone, 0), 0);
  EXPECT_EQ(code(JobOutcome::kFailed, JobCause::kWorker, 3), 3);
  EXPECT_EQ(code(JobOutcome::kFailed, JobCause::kNodeLost, 0), 78);
  EXPECT_EQ(code(JobOutcome::kFailed, JobCause::kTooFewNodes, 0), 78);
  EXPECT_EQ(code(JobOutcome::kClosed, JobCause::kRequested, 80), 80);
  EXPECT_EQ(code(JobOutcome::kClosed, JobCause::kRequested, 0), 79);
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
