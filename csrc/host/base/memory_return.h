#pragma once

// Returns memory to the system some time after a service has freed much of it: malloc keeps what a
// flood of clients had taken, for as long as anything allocated later lies behind it.
//
// Loop thread only.

#include <algorithm>
#include <cstddef>

#include "os/base/free_memory.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class MemoryReturn {
 public:
  // So much must have been freed to be worth the call.
  static constexpr std::size_t kFreedMin = 8 << 20;

  explicit MemoryReturn(os::EventLoop* loop) : loop_(*loop), timer_(loop, [this] { trim(); }) {}

  // Call before and after something is freed: an estimate of what the service holds.
  void update(std::size_t bytes) {
    bytes_ = bytes;
    peak_ = std::max(peak_, bytes);
    if (peak_ - bytes_ >= kFreedMin && !timer_.armed()) timer_.arm(loop_.now() + kDelay);
  }

 private:
  // Long enough for the clients of a flood to have gone.
  static constexpr Duration kDelay = std::chrono::seconds(1);

  void trim() {
    os::return_free_memory();
    peak_ = bytes_;
  }

  os::EventLoop& loop_;
  std::size_t bytes_ = 0;
  std::size_t peak_ = 0;  // since the last return
  os::EventLoop::Timer timer_;
};

}  // namespace elastic::host
