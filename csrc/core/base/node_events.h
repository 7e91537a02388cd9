#pragma once

// What the parts of AgentMachine receive (core/base/parts.h).

#include <memory>

#include "elastic/agent.h"
#include "elastic/worker_group.h"

namespace elastic::core::node_event {

// The agent of the node runs. Before any other event.
struct Started {};
// A round of this node begins: its workers are to be started, or continue in it.
struct RoundBegan {
  std::shared_ptr<const RoundInfo> round;
};
// Before the policy decides what follows from it.
struct WorkerEnded {
  int local_rank = 0;
  WorkerExit exit;
};
// A worker has failed, and the policy has decided what follows.
struct WorkerFailed {};
// This node's part in the job is over.
struct Ended {};

}  // namespace elastic::core::node_event
