#include <cerrno>
#include <system_error>

#include "core/base/duration_text.h"
#include "core/base/signal_name.h"
#include "elastic/worker_group.h"

namespace elastic {
namespace {

// The exit codes of sh and env for a program that cannot run (POSIX, "Exit Status for Commands").
constexpr int kShellNotExecutable = 126;
constexpr int kShellNotFound = 127;
constexpr int kShellSignalBase = 128;

std::string describe_hang(const WorkerExit& exit) {
  return "could not be started within " + core::duration_text(*exit.start_timeout) +
         ": it hangs in " + exit.stage + " " + exit.path + "; check that its file system responds";
}

// The limit behind an errno whose message does not name it.
const char* limit_hint(int error) {
  switch (error) {
    case EAGAIN: return " (the limit of processes is reached: ulimit -u, pids.max of the cgroup)";
    case EMFILE: return " (the limit of open files is reached: ulimit -n)";
    default: return "";
  }
}

}  // namespace

int WorkerExit::shell_code() const {
  switch (kind) {
    case ExitKind::kExited: return code;
    case ExitKind::kSignaled: return kShellSignalBase + signal;
    case ExitKind::kNotStarted: return error == ENOENT ? kShellNotFound : kShellNotExecutable;
    case ExitKind::kUnknown: break;
  }
  return 1;
}

std::string WorkerExit::describe() const {
  switch (kind) {
    case ExitKind::kExited: return "exited with code " + std::to_string(code);
    case ExitKind::kSignaled:
      if (!verdict.empty()) return verdict;
      return "killed by " + core::signal_text(signal) + (core_dumped ? ", core dumped" : "");
    case ExitKind::kNotStarted:
      if (start_timeout) return describe_hang(*this);
      return "could not be started: " + stage + " " + path + ": " +
             std::system_category().message(error) + limit_hint(error);
    case ExitKind::kUnknown: break;
  }
  return "ended; its exit status could not be read";
}

}  // namespace elastic
