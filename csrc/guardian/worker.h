#pragma once

// One worker as its guardian sees it, and how it is started.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "os/base/fd.h"

namespace elastic::guardian {

// What the child of a failed start writes to the pipe.
struct StartFailure {
  Stage stage;
  int error;
  // kOpen: which descriptor; kExec, kInterpreter: which candidate, or kNoCandidate.
  int index;
};
inline constexpr int kNoCandidate = -1;

// Where a child is on its way to its program: a word of memory shared with it, since a child that
// hangs in a system call cannot report anything itself.
class StartProgress {
 public:
  struct Step {
    Stage stage;
    int index;  // as StartFailure::index
  };
  // Invalid, with errno set, when the kernel has no memory left.
  static StartProgress create();
  bool valid() const { return word_ != nullptr; }
  // The child calls it before each call that can block; async-signal-safe.
  void enter(Stage stage, int index) const;
  Step current() const;

 private:
  using Word = std::atomic<std::uint64_t>;
  static_assert(Word::is_always_lock_free);
  struct Unmap {
    void operator()(Word* word) const;
  };
  std::unique_ptr<Word, Unmap> word_;
};

struct Worker {
  std::uint32_t id = 0;
  pid_t pid = -1;                       // also its process group and session
  os::UniqueFd exec_pipe;               // read end; valid until the start has succeeded or failed
  StartProgress progress;               // likewise
  std::vector<std::string> candidates;  // what execve is tried on, for the report of a failure
  std::string argv0, cwd, stdout_path, stderr_path;  // likewise
  bool ended = false;    // its exit was told; it stays a zombie, so that nobody gets its pid
  bool stopped = false;  // a stop had reached it while it lived
  bool killed = false;   // and the sweep's SIGKILL
};

// Forks and executes. On success the worker has a pid and a pipe, which gives end of file when the
// program was executed, and a StartFailure otherwise; on failure `failure` says why. `stream`
// takes the place of the streams that `request` names, unless it is negative.
bool spawn(const StartRequest& request, pid_t guardian, int stream, Worker* worker,
           StartFailure* failure);

// What the failure was about.
std::string failed_path(const Worker& worker, const StartFailure& failure);

}  // namespace elastic::guardian
