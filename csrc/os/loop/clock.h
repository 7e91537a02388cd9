#pragma once

// The only place that reads clocks.

#include <cstdint>
#include <string>

#include "elastic/time.h"

namespace elastic::os {

// CLOCK_MONOTONIC. Any thread.
Instant monotonic_now();

// `at` as nanoseconds since 1970, by the wall clock as it is set now. For logs and reports.
std::int64_t wall_time(Instant at);
// The time `wall`, nanoseconds since 1970, of this process's clock: the inverse of wall_time().
Instant instant_of_wall_time(std::int64_t wall);

// "2026-03-01T12:34:56.789", in local time, of nanoseconds since 1970.
std::string local_time_text(std::int64_t wall);

}  // namespace elastic::os
