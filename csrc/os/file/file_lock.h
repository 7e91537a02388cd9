#pragma once

// A lock between processes, also of several hosts that share a file system.

#include <string>
#include <utility>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/wait.h"

namespace elastic::os {

// Held while the object lives, and by nobody any more when its process has ended, however it ended.
class FileLock {
 public:
  // Locks the file, and creates it (mode 0600) if need be; it stays. Errors: of the file system,
  // and those of the limits.
  static Result<FileLock> acquire(const std::string& path, const WaitLimits& limits);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;  // open, and locked by flock(2)
};

}  // namespace elastic::os
