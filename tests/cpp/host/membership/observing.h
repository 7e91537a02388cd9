#pragma once

// What a test waits for at an observer.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "elastic/observer.h"
#include "os/loop/clock.h"

namespace elastic::host {

using Snapshot = std::shared_ptr<const ObservedJob>;

// The first snapshot with this property; an empty one, and a failure, if there is none.
inline Snapshot await(Observer* observer, const std::function<bool(const ObservedJob&)>& is_it) {
  const Instant deadline = os::monotonic_now() + std::chrono::seconds(60);
  while (true) {
    auto job = observer->next(deadline);
    if (!job.ok()) {
      ADD_FAILURE() << job.status().message();
      return std::make_shared<ObservedJob>();
    }
    if (is_it(**job)) return *job;
  }
}

inline Status end_of(Observer* observer) {
  const Instant deadline = os::monotonic_now() + std::chrono::seconds(60);
  while (true) {
    auto job = observer->next(deadline);
    if (!job.ok()) return job.status();
  }
}

}  // namespace elastic::host
