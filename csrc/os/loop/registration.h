#pragma once

// What an object registers at an event loop: descriptors, deadlines, and interest in stalls. For
// headers with such members; what they do to the loop itself is in os/loop/event_loop.h.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "elastic/time.h"

namespace elastic::os {

class EventLoop;

// Called when a watched descriptor is ready. `events` are EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR, …
class FdHandler {
 public:
  virtual ~FdHandler() = default;
  virtual void on_ready(std::uint32_t events) = 0;
};

// A descriptor's registration, which ends with the object. Declare it after the descriptor and
// after the state that its handler uses, so that it is destroyed first.
class Watch {
 public:
  Watch() = default;
  Watch(Watch&& other) noexcept;
  Watch& operator=(Watch&& other) noexcept;
  ~Watch() { reset(); }
  // Changes the watched events (level-triggered).
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
  ~Timer();
  void arm(Instant deadline);      // replaces an earlier deadline
  void arm_after(Duration delay);  // from the time of this iteration
  void disarm();
  bool armed() const { return armed_; }

 private:
  friend class EventLoop;
  EventLoop* loop_;
  std::function<void()> callback_;
  bool armed_ = false;
  bool is_firing_ = false;  // the callback runs, and is not in callback_
  std::multimap<Instant, Timer*>::iterator position_;
};

// A period in which a loop did not run. `late` is its known minimum: the time that handlers took,
// or the delay of the earliest timer. `away` is its maximum: the time since descriptors were last
// read. If the process was stopped during a sleep, the exact instant is unknown.
struct Stall {
  Duration late{};
  Duration away{};
};
// Stalls that are shorter are not reported.
inline constexpr Duration kStallMin = std::chrono::milliseconds(5);

// Calls back after a stall, at the beginning of the next iteration and before any of its handlers.
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

}  // namespace elastic::os
