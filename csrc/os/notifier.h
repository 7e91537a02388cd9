#pragma once

// Wakes one blocked thread from another: an eventfd, so that a signal interrupts the wait.

#include <cstdint>
#include <functional>
#include <utility>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/fd.h"

namespace elastic::os {

class Notifier {
 public:
  static Result<Notifier> create();
  // Any thread. Wakes the present wait, or the next one.
  void notify();
  // Returns kOk after notify(), kDeadlineExceeded at the deadline, or kCancelled when `interrupted`
  // (may be empty: never) said to give up. It is asked before the wait and after every signal; no
  // signal is lost between the two, so a wait without a deadline always hears of one.
  Status wait(Instant deadline, const std::function<bool()>& interrupted);

 private:
  explicit Notifier(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Waits until `fd` has one of `events` (poll(2)) or the deadline passes; otherwise as
// Notifier::wait.
Status wait_ready(int fd, short events, Instant deadline, const std::function<bool()>& interrupted);

}  // namespace elastic::os
