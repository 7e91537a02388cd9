#pragma once

// What the launcher of a failed worker decides by its own options, before the rules of the job.

#include <vector>

#include "core/rendezvous/failure_policy.h"
#include "elastic/agent_options.h"

namespace elastic::core {

std::vector<FailureRule> launcher_rules(const AgentOptions& options);

}  // namespace elastic::core
