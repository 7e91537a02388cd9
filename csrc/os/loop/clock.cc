#include "os/loop/clock.h"

#include <ctime>

namespace elastic::os {

Instant monotonic_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // cannot fail for this clock
  return Instant(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace elastic::os
