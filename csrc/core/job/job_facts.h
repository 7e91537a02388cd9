#pragma once

// The state of a job as observers see it.

#include <vector>

#include "core/job/job.h"
#include "elastic/observer.h"

namespace elastic::core {

// Without the job's id, who coordinates it, and the time of the wall clock. `job`: null before the
// first join.
ObservedJob describe_job(const Job* job, Instant now);
std::vector<ObservedNode> describe_nodes(const RendezvousMachine& rendezvous, Instant now);

}  // namespace elastic::core
