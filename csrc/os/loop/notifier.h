#pragma once

// Wakes one thread from another: an eventfd, so that a signal interrupts the wait.

#include <cstdint>
#include <utility>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/wait.h"

namespace elastic::os {

class Notifier {
 public:
  static Result<Notifier> create();
  // Any thread. Wakes the current wait, or the next one.
  void notify();
  // Returns kOk after notify(), or the error of the limit that ended it, as wait_ready() does.
  Status wait(const WaitLimits& limits);
  // Readable from notify() until a wait returns; for waits on several descriptors.
  int fd() const { return fd_.get(); }
  // Ends the notification without a wait.
  void clear();

 private:
  explicit Notifier(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace elastic::os
