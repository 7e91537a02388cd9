#include "os/file/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>

#include "os/base/posix_error.h"
#include "os/loop/clock.h"

namespace elastic::os {
namespace {

// flock(2) has no deadline, so it is polled; locks are held for short times only.
constexpr Duration kFirstWait = std::chrono::microseconds(200);
constexpr Duration kLongestWait = std::chrono::milliseconds(10);

}  // namespace

Result<FileLock> FileLock::acquire(const std::string& path, const WaitLimits& limits) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return posix_error("cannot open " + path, errno);
  Duration wait = kFirstWait;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return posix_error("cannot lock " + path, errno);
    if (monotonic_now() >= limits.deadline) {
      return Status(StatusCode::kDeadlineExceeded,
                    "cannot lock " + path + " before the deadline: another process holds the lock");
    }
    WaitLimits nap = limits;
    nap.deadline = std::min(limits.deadline, monotonic_now() + wait);
    const Status rested = wait_ready(-1, 0, nap);
    if (!rested.ok() && rested.code() != StatusCode::kDeadlineExceeded) return rested;
    wait = std::min(wait * 2, kLongestWait);
  }
  return FileLock(std::move(fd));
}

}  // namespace elastic::os
