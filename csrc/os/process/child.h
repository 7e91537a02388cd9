#pragma once

// A process: when it ends, and how a child ended. Any thread.

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "os/base/fd.h"

namespace elastic::os {

// A descriptor that is readable when the process has ended. Invalid: the kernel (before 5.3) or a
// seccomp filter has no pidfds.
inline UniqueFd open_pidfd(pid_t pid) {
  // The same on every architecture; the headers of an old C library lack it.
  constexpr long kPidfdOpen = 434;
  return UniqueFd(static_cast<int>(::syscall(kPidfdOpen, pid, 0)));
}

struct ChildEnd {
  std::optional<int> status;  // of waitpid(); nullopt: the embedding program reaps every child

  bool succeeded() const { return status == 0; }
  // "exited with code 3", "was killed by signal 9"
  std::string describe() const;
};

// Reaps the child. With WNOHANG in `flags`: nullopt while it has not ended.
std::optional<ChildEnd> reap_child(pid_t pid, int flags = 0);

}  // namespace elastic::os
