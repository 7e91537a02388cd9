#include "os/loop/clock.h"

#include <cstdio>
#include <ctime>

namespace elastic::os {

Instant monotonic_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // cannot fail for this clock
  return Instant(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

Clock* real_clock() {
  class RealClock final : public Clock {
    Instant now() const override { return monotonic_now(); }
  };
  static Clock* const clock =
      new RealClock;  // never destroyed: detached threads may outlive main()
  return clock;
}

std::int64_t wall_time(Instant at) {
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  const std::chrono::nanoseconds now =
      std::chrono::seconds(wall.tv_sec) + std::chrono::nanoseconds(wall.tv_nsec);
  return std::int64_t{(now - (monotonic_now() - at)).count()};
}

Instant instant_of_wall_time(std::int64_t wall) {
  const Instant now = monotonic_now();
  return now - std::chrono::nanoseconds(wall_time(now) - wall);
}

std::string local_time_text(std::int64_t wall) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const auto seconds = static_cast<std::time_t>(wall / kSecond);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[sizeof "2026-03-01T12:34:56"] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &local);
  const std::string thousandths = std::to_string(wall % kSecond / 1'000'000);
  return std::string(text) + "." + std::string(3 - thousandths.size(), '0') + thousandths;
}

}  // namespace elastic::os
