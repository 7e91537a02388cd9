// The table of the agent's policy. The stories are in tests/data/scenarios/agent.

#include <gtest/gtest.h>

#include "core/agent/agent_policy.h"
#include "core/base/transitions.h"

namespace elastic::core {
namespace {

// Properties of the whole table: every state handles the loss of supervision and progress messages,
// only the events that contradict it end in UNKNOWN, and only the result of the job
// has an effect after the result.
TEST(AgentPolicyTable, IsConsistent) {
  for (std::size_t state = 0; state < kPolicyStates; ++state) {
    const auto from = static_cast<PolicyState>(state);
    const bool is_finished = from == PolicyState::kFinished;
    for (std::size_t input = 0; input < kPolicyInputs; ++input) {
      const AgentPolicy::Edge& edge = AgentPolicy::edge_of(from, static_cast<PolicyInput>(input));
      EXPECT_TRUE(!edge.is_loss || edge.next == PolicyState::kFinished);
      EXPECT_TRUE(!is_finished || edge.next == from);
      using enum PolicyInput;
      constexpr EnumSet<PolicyInput> kResults = {kSuccess, kEnd, kEndAtStep};
      const bool is_result = kResults.has(static_cast<PolicyInput>(input));
      EXPECT_FALSE(is_finished && !is_result && edge.run != nullptr);
    }
    EXPECT_EQ(AgentPolicy::edge_of(from, PolicyInput::kSupervisionLost).is_loss, !is_finished);
    const AgentPolicy::Edge& progress = AgentPolicy::edge_of(from, PolicyInput::kProgress);
    EXPECT_EQ(progress.next, from);
    EXPECT_EQ(progress.run != nullptr, !is_finished);
  }
}

}  // namespace
}  // namespace elastic::core
