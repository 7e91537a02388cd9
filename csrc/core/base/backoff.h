#pragma once

// The delay before the next attempt: exponential with full jitter, so that a thousand clients that
// failed together do not retry together.
//
// Pure: the random generator is a parameter. Not thread-safe.

#include <algorithm>

#include "core/base/rng.h"
#include "elastic/time.h"

namespace elastic {

struct BackoffOptions {
  Duration first = std::chrono::milliseconds(20);  // upper bound of the first delay; doubles
  Duration cap = std::chrono::seconds(1);          // maximum of the upper bound
};

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
