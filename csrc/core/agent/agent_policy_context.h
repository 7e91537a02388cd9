#pragma once

// What a step of the policy works with: for the files of AgentPolicy only.

#include <string>
#include <utility>
#include <vector>

#include "core/agent/agent_policy.h"

namespace elastic::core {

struct AgentPolicy::Context {
  Instant now;
  AgentState from;  // the state before the step
  std::vector<PolicyAction>* out;

  template <typename Action>
  void act(Action action) const {
    out->emplace_back(std::in_place_type<Action>, std::move(action));
  }
  void report(AgentEvent::Kind kind, AgentState state, std::string message) const {
    AgentEvent event = event_of(kind, state, now);
    event.message = std::move(message);
    act(Report{std::move(event)});
  }
};

}  // namespace elastic::core
