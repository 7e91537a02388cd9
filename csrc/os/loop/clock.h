#pragma once

// The only place that reads the clock.

#include "elastic/time.h"

namespace elastic::os {

// CLOCK_MONOTONIC. Any thread.
Instant monotonic_now();

}  // namespace elastic::os
