#include "os/process/child.h"

#include <sys/wait.h>

#include <cerrno>

namespace elastic::os {

std::string ChildEnd::describe() const {
  if (!status) return "ended with an unknown status";
  if (WIFSIGNALED(*status)) return "was killed by signal " + std::to_string(WTERMSIG(*status));
  return "exited with code " + std::to_string(WEXITSTATUS(*status));
}

std::optional<ChildEnd> reap_child(pid_t pid, int flags) {
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = ::waitpid(pid, &status, flags);
  } while (reaped < 0 && errno == EINTR);
  if (reaped == 0) return std::nullopt;
  return ChildEnd{reaped == pid ? std::optional(status) : std::nullopt};
}

}  // namespace elastic::os
