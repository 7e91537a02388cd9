#pragma once

// How long to wait before the next attempt: exponential with full jitter, so that a thousand
// clients that failed together do not come back together.
//
// Pure: chance is injected. One caller at a time.

#include "core/base/rng.h"
#include "elastic/time.h"

namespace elastic {

struct BackoffOptions {
  Duration first = std::chrono::milliseconds(20);  // the bound of the first wait; it doubles
  Duration cap = std::chrono::seconds(1);          // and never exceeds this one
};

class Backoff {
 public:
  Backoff(const BackoffOptions& options, Rng* rng)
      : bound_(options.first), cap_(options.cap), rng_(rng) {}

  // The wait before the next attempt: uniform between zero and the present bound.
  Duration next();

 private:
  Duration bound_;
  Duration cap_;
  Rng* rng_;  // outlives the backoff
};

}  // namespace elastic
