#pragma once

// The time types of every state machine and public call.
//
// Decisions use monotonic time only (CLOCK_MONOTONIC: it never steps, and stops while the host is
// suspended). The pure core cannot read the clock; the caller passes `now`.

#include <chrono>

namespace elastic {

using Duration = std::chrono::nanoseconds;

// The clock of Instant. It has no now(): only os::monotonic_now() reads the clock.
struct MonotonicTimeline {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicTimeline, Duration>;
  static constexpr bool is_steady = true;
};

// A point of monotonic time; comparable only within one host and one boot.
using Instant = std::chrono::time_point<MonotonicTimeline, Duration>;

// Converts seconds, as in Python and on the command line; saturates at about 292 years. NaN is 0.
constexpr Duration from_seconds(double seconds) {
  constexpr double kMaxSeconds = 9.0e9;
  if (seconds != seconds) return Duration::zero();
  if (seconds >= kMaxSeconds) return std::chrono::seconds(static_cast<long long>(kMaxSeconds));
  if (seconds <= -kMaxSeconds) return std::chrono::seconds(-static_cast<long long>(kMaxSeconds));
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

constexpr double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// now + wait, saturating, so that a very long wait can mean "no limit".
constexpr Instant add_saturating(Instant now, Duration wait) {
  const bool is_beyond = wait > Duration::zero() && now > Instant::max() - wait;
  return is_beyond ? Instant::max() : now + wait;
}

}  // namespace elastic
