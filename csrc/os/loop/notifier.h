#pragma once

// Wakes one blocked thread from another: an eventfd, so that a signal interrupts the wait.

#include <cstdint>
#include <utility>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/wait.h"

namespace elastic::os {

class Notifier {
 public:
  static Result<Notifier> create();
  // Any thread. Wakes the present wait, or the next one.
  void notify();
  // Returns kOk after notify(), or what the limits ended it with, as wait_ready() does.
  Status wait(const WaitLimits& limits);
  // Readable from notify() until a wait has returned for it; for waits on several things.
  int fd() const { return fd_.get(); }

 private:
  explicit Notifier(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace elastic::os
