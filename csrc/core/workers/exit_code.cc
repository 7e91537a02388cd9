// The exit codes of a worker, as a shell and as a launcher reports it, and of a job.

#include <cerrno>

#include "elastic/agent.h"
#include "elastic/worker_group.h"

namespace elastic {
namespace {

// The exit codes of sh and env for a program that cannot run (POSIX, "Exit Status for Commands").
constexpr int kShellNotExecutable = 126;
constexpr int kShellNotFound = 127;
constexpr int kShellSignalBase = 128;

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

int exit_code_of(const JobResult& job) {
  if (job.outcome == JobOutcome::kSucceeded) return 0;
  // A process cannot exit with another code: of 256 its parent would see 0.
  if (job.exit_code >= 1 && job.exit_code <= 255) return job.exit_code;
  const bool is_loss = job.cause == JobCause::kNodeLost || job.cause == JobCause::kTooFewNodes;
  return is_loss ? kExitNodeLost : kExitJobClosed;
}

int exit_code_of(const WorkerExit& exit) {
  if (exit.kind != ExitKind::kNotStarted) return exit.shell_code();
  // The machine has no process or descriptor left.
  if (exit.stage == "fork" || exit.stage == "pipe") return kExitSupervisionLost;
  return exit.stage == "open" ? kExitCannotLog : kExitCannotStart;
}

}  // namespace elastic
