#pragma once

// Returns memory to the system some time after a service has freed much of it. malloc does not
// return the memory of a flood of clients while a later allocation has a higher address.
//
// Loop thread only: malloc locks its arenas meanwhile, so another thread would delay the loop, too.

#include <algorithm>
#include <cstddef>

#include "os/base/process.h"
#include "os/loop/registration.h"

namespace elastic::host {

class MemoryReturn {
 public:
  // The minimum of freed memory for which the call is made.
  static constexpr std::size_t kFreedMin = 8 << 20;

  explicit MemoryReturn(os::EventLoop* loop) : timer_(loop, [this] { trim(); }) {}

  // An estimate of the memory that the service uses. Call it before and after memory is freed.
  void update(std::size_t bytes) {
    bytes_ = bytes;
    peak_ = std::max(peak_, bytes);
    if (peak_ - bytes_ >= kFreedMin && !timer_.armed()) timer_.arm_after(kDelay);
  }

 private:
  // Long enough for a flood of clients to disconnect.
  static constexpr Duration kDelay = std::chrono::seconds(1);

  void trim() {
    os::return_free_memory();
    peak_ = bytes_;
  }

  std::size_t bytes_ = 0;
  std::size_t peak_ = 0;  // since the last return
  os::Timer timer_;
};

}  // namespace elastic::host
