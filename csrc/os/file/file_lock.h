#pragma once

// A lock between processes, also on several hosts with a shared file system.

#include <string>
#include <utility>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/wait.h"

namespace elastic::os {

// Held while the object lives; the kernel releases it when the process ends for any reason.
class FileLock {
 public:
  // Locks the file; creates it (mode 0600) if it does not exist, and never removes it. Errors: of
  // the file system, and the errors of the limits.
  static Result<FileLock> acquire(const std::string& path, const WaitLimits& limits);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;  // open, and locked by flock(2)
};

}  // namespace elastic::os
