#pragma once

// One worker as its guardian sees it, and how it is started.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "os/base/fd.h"

namespace elastic::guardian {

struct Worker {
  std::uint32_t id = 0;
  pid_t pid = -1;                       // also its process group and session
  os::UniqueFd exec_pipe;               // read end; valid until the start has succeeded or failed
  std::vector<std::string> candidates;  // what execve is tried on, for the report of a failure
  std::string argv0, cwd, stdout_path, stderr_path;  // likewise
  bool ended = false;    // its exit was told; it stays a zombie, so that nobody gets its pid
  bool stopped = false;  // a stop had reached it while it lived
};

// What the child of a failed start writes to the pipe.
struct StartFailure {
  Stage stage;
  int error;
  // kOpen: which descriptor; kExec, kInterpreter: which candidate, or kNoCandidate.
  int index;
};
inline constexpr int kNoCandidate = -1;

// Forks and executes. On success the worker has a pid and a pipe, which gives end of file when the
// program was executed, and a StartFailure otherwise; on failure `failure` says why.
bool spawn(const StartRequest& request, pid_t guardian, Worker* worker, StartFailure* failure);

// What the failure was about.
std::string failed_path(const Worker& worker, const StartFailure& failure);

}  // namespace elastic::guardian
