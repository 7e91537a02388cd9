#pragma once

// The only place that reads clocks.

#include <cstdint>

#include "elastic/time.h"

namespace elastic::os {

// CLOCK_MONOTONIC. Any thread.
Instant monotonic_now();

// `at` as nanoseconds since 1970, by the wall clock as it is set now. For logs and reports.
std::int64_t wall_time(Instant at);

}  // namespace elastic::os
