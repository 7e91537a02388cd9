#pragma once

// Wakes one blocked thread from another: an eventfd, so that a signal interrupts the wait.

#include <cstdint>
#include <functional>
#include <utility>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/fd.h"
#include "os/wait.h"

namespace elastic::os {

class Notifier {
 public:
  static Result<Notifier> create();
  // Any thread. Wakes the present wait, or the next one.
  void notify();
  // Returns kOk after notify(), kDeadlineExceeded at the deadline, or kCancelled when `interrupted`
  // (may be empty: never) said to give up. No signal is lost to a race with the start of the wait
  // (os/wait.h), so a wait without a deadline always hears of one.
  Status wait(Instant deadline, const std::function<bool()>& interrupted);
  Status wait(const WaitLimits& limits);
  // Readable from notify() until a wait has returned for it; for waits on several things.
  int fd() const { return fd_.get(); }

 private:
  explicit Notifier(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace elastic::os
