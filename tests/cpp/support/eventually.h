#pragma once

// The only places in the C++ tests where a thread sleeps (tests/tidy.py).

#include <algorithm>
#include <chrono>
#include <thread>

#include "elastic/time.h"

namespace elastic::support {

// Waits for what sends no event, with growing pauses. False: it was not true within `limit`, which
// only a failing test waits for.
template <typename Condition>
bool eventually(const Condition& condition, Duration limit = std::chrono::seconds(60)) {
  using std::chrono::milliseconds;
  milliseconds pause(1);
  for (Duration waited{}; !condition(); waited += pause) {
    if (waited >= limit) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(20));
  }
  return true;
}

// A thread that does not run for that long, where that is what a test is about.
inline void stall_for_test(Duration time) { std::this_thread::sleep_for(time); }

}  // namespace elastic::support
