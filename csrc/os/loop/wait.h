#pragma once

// Blocking waits on descriptors, which a deadline, another thread or a signal can end; and a
// descriptor with which a thread ends the wait of another one.

#include <poll.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"

namespace elastic::os {

// The conditions that end a wait before a descriptor is ready. `interrupted` outlives the wait.
struct WaitLimits {
  Instant deadline = Instant::max();
  // Called after a signal may have arrived; true ends the wait with kCancelled. May be null or
  // empty.
  const std::function<bool()>* interrupted = nullptr;
  // When it is readable, the wait ends with kFailedPrecondition. -1: none.
  int wake_fd = -1;
};

// Waits until `fd` has one of `events` (or an error or hangup, see poll(2)). With fd -1 only the
// limits end the wait: use this to sleep. Errors: kDeadlineExceeded, kCancelled,
// kFailedPrecondition, see WaitLimits.
Status wait_ready(int fd, short events, const WaitLimits& limits);

// The same for many descriptors: returns when at least one has a non-zero revents.
Status wait_any(std::vector<pollfd>* items, const WaitLimits& limits);

// Wakes one thread from another: an eventfd, so that a signal interrupts the wait.
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
