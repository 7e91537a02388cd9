#pragma once

// Blocking waits on descriptors that a deadline, another thread or a signal can end.

#include <poll.h>

#include <functional>
#include <vector>

#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::os {

// What ends a wait before a descriptor is ready. What the pointer names outlives the wait.
struct WaitLimits {
  Instant deadline = Instant::max();
  // Asked when a signal may have come; true ends the wait with kCancelled. null or empty: never.
  const std::function<bool()>* interrupted = nullptr;
  // Becomes readable when the wait shall end with kFailedPrecondition. -1: nothing does.
  int wake_fd = -1;
};

// Waits until `fd` has one of `events` (or an error or hangup, as poll(2) tells). fd -1: only the
// limits end the wait, so this is how to sleep. Errors: kDeadlineExceeded, kCancelled,
// kFailedPrecondition, as WaitLimits says.
Status wait_ready(int fd, short events, const WaitLimits& limits);

// The same for many descriptors: returns when at least one has a non-zero revents.
Status wait_any(std::vector<pollfd>* items, const WaitLimits& limits);

}  // namespace elastic::os
