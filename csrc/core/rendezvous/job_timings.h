#pragma once

// The timings of a job: the durations among its settings. The first node's timings apply; every
// other node uses them in place of its own and logs the difference.

#include <string>
#include <utility>

#include "elastic/rendezvous_types.h"

namespace elastic::core {

// With their names, in the order of the encodings.
inline constexpr std::pair<const char*, Duration JobSettings::*> kTimings[] = {
    {"join_timeout", &JobSettings::join_timeout},
    {"last_call_timeout", &JobSettings::last_call_timeout},
    {"settle", &JobSettings::settle},
    {"shrink_delay", &JobSettings::shrink_delay},
    {"node_timeout", &JobSettings::node_timeout},
    {"reconnect_grace", &JobSettings::reconnect_grace},
    {"store_grace", &JobSettings::store_grace},
    {"restart_backoff", &JobSettings::restart_backoff},
};

void copy_timings(const JobSettings& from, JobSettings* to);

// One sentence for the node's log; "" if its own timings equal the job's.
std::string describe_timing_difference(const JobSettings& job, const JobSettings& own);

}  // namespace elastic::core
