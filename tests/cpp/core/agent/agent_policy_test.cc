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

}  // namespace
}  // namespace elastic::core
