#include "os/loop/clock.h"

#include <ctime>

namespace elastic::os {

Instant monotonic_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // cannot fail for this clock
  return Instant(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

std::int64_t wall_time(Instant at) {
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  const std::chrono::nanoseconds now =
      std::chrono::seconds(wall.tv_sec) + std::chrono::nanoseconds(wall.tv_nsec);
  return std::int64_t{(now - (monotonic_now() - at)).count()};
}

}  // namespace elastic::os
