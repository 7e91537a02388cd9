#pragma once

// The event loop: epoll, deadlines and posted work, all served by one thread.
//
// One thread calls run(); it is the loop thread. Everything here is for that thread alone, except
// post() and stop(), which any thread may call. Handlers run on the loop thread, one at a time, and
// may create and destroy watches, timers and themselves: an event of a descriptor whose watch is
// gone is dropped (each registration has its own slot and generation), and what was deferred runs
// when all handlers of the iteration have returned.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"

namespace elastic::os {

class EventLoop {
 public:
  // Told when a watched descriptor is ready. `events` are EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR, …
  class FdHandler {
   public:
    virtual ~FdHandler() = default;
    virtual void on_ready(std::uint32_t events) = 0;
  };

  // A descriptor's registration; gone with the object. Declare it behind the descriptor and behind
  // the state that its handler uses, so that it goes first.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept;
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { reset(); }
    // Changes what is waited for (level-triggered).
    void modify(std::uint32_t events);
    void reset();
    bool active() const { return loop_ != nullptr; }

   private:
    friend class EventLoop;
    Watch(EventLoop* loop, int fd, std::uint32_t slot) : loop_(loop), fd_(fd), slot_(slot) {}
    EventLoop* loop_ = nullptr;
    int fd_ = -1;
    std::uint32_t slot_ = 0;
  };

  // A one-shot deadline. The callback may arm it again; then it fires in a later iteration.
  class Timer {
   public:
    Timer(EventLoop* loop, std::function<void()> callback)
        : loop_(loop), callback_(std::move(callback)) {}
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    ~Timer() { disarm(); }
    void arm(Instant deadline);  // replaces an earlier deadline
    void disarm();
    bool armed() const { return armed_; }

   private:
    friend class EventLoop;
    EventLoop* loop_;
    std::function<void()> callback_;
    bool armed_ = false;
    std::multimap<Instant, Timer*>::iterator position_;
  };

  // How the loop stood still. `late` is what is known: handlers took so long, or the earliest timer
  // fires so long after it was due. `away` is as long as it may have been: since something was last
  // read. After a sleep nobody can tell when in it the process was stopped.
  struct Stall {
    Duration late{};
    Duration away{};
  };
  // Told of a stall, at the beginning of the iteration in which it shows and before any of its
  // handlers. What is shorter than kStallMin is not told.
  class StallWatch {
   public:
    StallWatch(EventLoop* loop, std::function<void(const Stall&)> callback);
    StallWatch(const StallWatch&) = delete;
    StallWatch& operator=(const StallWatch&) = delete;
    ~StallWatch();

   private:
    friend class EventLoop;
    EventLoop* loop_;
    std::function<void(const Stall&)> callback_;
  };
  static constexpr Duration kStallMin = std::chrono::milliseconds(5);

  static Result<std::unique_ptr<EventLoop>> create();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  // Serves events until stop(). Work that was posted before stop() still runs.
  void run();
  // Any thread.
  void stop();
  // Runs `work` on the loop thread, in the order of posting. Any thread. Work posted after run()
  // has returned is destroyed with the loop, unrun.
  void post(std::function<void()> work);

  // Begins to watch a descriptor. The handler must outlive the watch.
  Result<Watch> watch(int fd, std::uint32_t events, FdHandler* handler);
  // Runs `work` at the end of this iteration: for closing what a handler is still inside of, and
  // for work that is better done once for all events of an iteration.
  void defer(std::function<void()> work);
  // The time at which this iteration began; read once, so that all its decisions agree.
  Instant now() const { return now_; }
  // Whether this iteration serves every descriptor that was ready when it began. There is a limit,
  // and those that are left take their turn before those that are served again.
  bool is_caught_up() const { return is_caught_up_; }

 private:
  struct Slot {
    FdHandler* handler = nullptr;
    std::uint32_t generation = 0;
  };
  class Wakeup;

  EventLoop(UniqueFd epoll, UniqueFd wakeup);
  int timeout_ms(Instant before) const;
  void dispatch_fds();
  void tell_stall(Instant last, Instant slept);
  void fire_timers();
  void run_posted();
  void run_deferred();

  UniqueFd epoll_;
  UniqueFd wakeup_;
  std::unique_ptr<Wakeup> wakeup_handler_;
  Watch wakeup_watch_;

  // Loop thread only.
  Instant now_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::multimap<Instant, Timer*> timers_;
  std::vector<std::function<void()>> deferred_;
  std::vector<StallWatch*> stall_watches_;
  bool is_caught_up_ = true;
  bool stopping_ = false;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
};

}  // namespace elastic::os
