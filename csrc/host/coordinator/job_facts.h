#pragma once

// The state of a job as observers see it.

#include <vector>

#include "core/session/job_history.h"
#include "elastic/observer.h"
#include "elastic/rendezvous.h"
#include "host/coordinator/drain_desk.h"
#include "host/coordinator/hang_desk.h"

namespace elastic::host {

// Without the job's id, and who coordinates it. `machine`: null before the first join.
ObservedJob describe_job(const Rendezvous* machine, const core::JobHistory& history,
                         const HangDesk& hangs, const DrainDesk& drain, Instant now);
std::vector<ObservedNode> describe_nodes(const Rendezvous& machine, Instant now);

}  // namespace elastic::host
