#pragma once

// Chance as a parameter, so that the same seed gives the same run: a random generator, and the
// delays of retries that are drawn from it.

#include <algorithm>
#include <cstdint>

#include "elastic/time.h"

namespace elastic {

// SplitMix64. Not for secrets.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
  }

  // Uniform in [0, 1).
  double next_fraction() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

struct BackoffOptions {
  Duration first = std::chrono::milliseconds(20);  // upper bound of the first delay; doubles
  Duration cap = std::chrono::seconds(1);          // maximum of the upper bound
};

// The delay before the next attempt: exponential with full jitter, so that a thousand clients that
// failed together do not retry together.
class Backoff {
 public:
  Backoff(const BackoffOptions& options, Rng* rng)
      : bound_(options.first), cap_(options.cap), rng_(rng) {}

  // The delay before the next attempt: uniform between zero and the current upper bound.
  Duration next() {
    const Duration bound = std::min(bound_, cap_);
    if (bound_ < cap_) bound_ *= 2;
    const double fraction = rng_->next_fraction();
    return Duration(static_cast<Duration::rep>(static_cast<double>(bound.count()) * fraction));
  }

 private:
  Duration bound_;
  Duration cap_;
  Rng* rng_;  // outlives the backoff
};

}  // namespace elastic
