#pragma once

#include <chrono>

#include "elastic/time.h"

namespace elastic::support {

// The instant of a test's clock that many seconds after its start.
inline Instant at(int second) { return Instant(std::chrono::seconds(second)); }

}  // namespace elastic::support
