#pragma once

// The event loop: epoll, deadlines and posted work on one thread.
//
// The thread that calls run() is the loop thread. Only it may call members, except post() and
// stop(), which any thread may call. Handlers run on the loop thread, one at a time, and may create
// and destroy watches, timers and themselves: an event of a destroyed watch is dropped (each
// registration has its own slot and generation), and deferred work runs when all handlers of the
// iteration have returned.
//
// Errors are values here, so an exception of a handler is an internal error, after which no state
// of the loop can be relied on: the loop names the handler and ends the process with exit code 70.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/clock.h"
#include "os/loop/registration.h"

namespace elastic::os {

class EventLoop {
 public:
  // `clock` outlives the loop.
  static Result<std::unique_ptr<EventLoop>> create(Clock* clock = real_clock());
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  // Handles events until stop(). Work that was posted before stop() still runs.
  void run();
  // Any thread.
  void stop();
  // One iteration that does not sleep, instead of run(): for the owner of a clock that adopted the
  // loop. The time between two turns counts as sleep. False: there was nothing to do.
  bool turn();
  bool is_turned() const { return is_turned_; }  // by turn(), and never by run()
  // The deadline of the earliest timer; Instant::max(): none is armed.
  Instant next_deadline() const;
  // Runs `work` on the loop thread, in the order of posting. Any thread. Work posted after run()
  // has returned is destroyed with the loop, unrun.
  void post(std::function<void()> work);

  // Registers a descriptor. The handler must outlive the watch.
  Result<Watch> watch(int fd, std::uint32_t events, FdHandler* handler);
  // Runs `work` at the end of this iteration: for destroying an object whose handler is running,
  // and for work that is done once for all events of an iteration.
  void defer(std::function<void()> work);
  // The time at which this iteration began; read once, so that all its decisions use the same time.
  Instant now() const { return now_; }
  Clock* clock() const { return clock_; }
  // The time at this moment, for what is measured inside an iteration.
  Instant read_clock() const { return clock_->now(); }
  // Whether this iteration handles every descriptor that was ready when it began. It handles a
  // limited number; the rest are handled first in the next iteration.
  bool is_caught_up() const { return is_caught_up_; }

 private:
  struct Slot {
    FdHandler* handler = nullptr;
    std::uint32_t generation = 0;
  };
  class Wakeup;
  friend os::Watch;
  friend os::Timer;
  friend os::StallWatch;

  EventLoop(Clock* clock, UniqueFd epoll, std::unique_ptr<Wakeup> wakeup);
  int timeout_ms(Instant before) const;
  bool iterate(Instant slept, int timeout_ms);
  bool dispatch_fds(Instant slept, int timeout_ms);
  void report_stall(Instant last, Instant slept);
  bool fire_timers();
  void fire(Timer* timer);
  bool run_posted();
  bool run_deferred();

  Clock* const clock_;
  bool is_turned_ = false;
  UniqueFd epoll_;
  const std::unique_ptr<Wakeup> wakeup_;  // for post() and stop()
  Watch wakeup_watch_;

  // Loop thread only.
  Instant now_;
  Instant last_turn_;  // when it ended
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::multimap<Instant, Timer*> timers_;
  Timer* firing_ = nullptr;  // whose callback runs; null: the callback has destroyed it
  std::vector<std::function<void()>> deferred_;
  std::vector<StallWatch*> stall_watches_;
  bool is_caught_up_ = true;
  bool stopping_ = false;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
};

}  // namespace elastic::os
