#pragma once

// Blocking waits on descriptors; a deadline, another thread or a signal can end them.

#include <poll.h>

#include <functional>
#include <vector>

#include "elastic/status.h"
#include "elastic/time.h"

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

}  // namespace elastic::os
