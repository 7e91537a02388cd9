#pragma once

// The only place that reads clocks.

#include <cstdint>

#include "elastic/time.h"

namespace elastic::os {

// CLOCK_MONOTONIC. Any thread.
Instant monotonic_now();

// Nanoseconds since 1970 at the moment `at`, by the clock on the wall as it is set now. For people.
std::int64_t wall_time(Instant at);

}  // namespace elastic::os
