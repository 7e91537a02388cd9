#pragma once

// The timings of a job: the durations among its settings. They are those of the first node; every
// other node uses them in place of its own and logs the difference.

#include <string>

#include "elastic/rendezvous_types.h"

namespace elastic::core {

void copy_timings(const JobSettings& from, JobSettings* to);

// One sentence for the node's log; "" if its own timings are those of the job.
std::string describe_timing_difference(const JobSettings& job, const JobSettings& own);

}  // namespace elastic::core
