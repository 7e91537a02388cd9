#include "host/workers/orphan_sweep.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "os/base/posix_error.h"
#include "os/process/process_tree.h"

namespace elastic::host {

Result<OrphanSweep> OrphanSweep::prepare(const std::string& guardian_path) {
  OrphanSweep sweep(guardian_path);
  if (!os::list_children(&sweep.before_)) {
    return Status(StatusCode::kUnavailable, "cannot list this process's children: no /proc");
  }
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return os::posix_error("cannot become a subreaper", errno);
  }
  return sweep;
}

std::vector<pid_t> OrphanSweep::kill_once() {
  std::vector<pid_t> children;
  os::list_children(&children);
  std::vector<pid_t> orphans;
  for (const pid_t child : children) {
    if (!is_orphan(child)) continue;
    orphans.push_back(child);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, WNOHANG);
  }
  return orphans;
}

bool OrphanSweep::is_orphan(pid_t pid) const {
  if (::getsid(pid) == ::getsid(0)) return false;
  if (std::find(before_.begin(), before_.end(), pid) != before_.end()) return false;
  struct stat running {};
  struct stat guardian {};
  const std::string program = "/proc/" + std::to_string(pid) + "/exe";
  const bool is_guardian = ::stat(program.c_str(), &running) == 0 &&
                           ::stat(guardian_path_.c_str(), &guardian) == 0 &&
                           running.st_dev == guardian.st_dev && running.st_ino == guardian.st_ino;
  return !is_guardian;
}

}  // namespace elastic::host
