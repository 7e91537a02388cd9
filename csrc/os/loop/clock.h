#pragma once

// The only place that reads clocks.
//
// Code on an event loop takes the time from its loop (os/loop/event_loop.h), and the loop from a
// Clock, which a test can turn by hand. Code that blocks a thread reads monotonic_now().

#include <cstdint>
#include <string>

#include "elastic/time.h"

namespace elastic::os {

// CLOCK_MONOTONIC. Any thread.
Instant monotonic_now();

class EventLoop;

// What an event loop takes its time from. It never goes back.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() const = 0;
  // Called by each loop with this clock when it begins and when it ends. True: the owner of the
  // clock turns the loop (EventLoop::turn()), on the thread that creates it, and no other thread
  // runs it. So a test runs all the loops of a program on one thread, in its own time.
  virtual bool adopt(EventLoop*) { return false; }
  virtual void release(EventLoop*) {}
};
// The clock of monotonic_now(). Any thread.
Clock* real_clock();

// `at` as nanoseconds since 1970, by the wall clock as it is set now. For logs and reports.
std::int64_t wall_time(Instant at);
// The time `wall`, nanoseconds since 1970, of this process's clock: the inverse of wall_time().
Instant instant_of_wall_time(std::int64_t wall);

// "2026-03-01T12:34:56.789", in local time, of nanoseconds since 1970.
std::string local_time_text(std::int64_t wall);

}  // namespace elastic::os
