#pragma once

// The workers of one node: started together, watched, and stopped together.
//
//   agent → guardian → workers. The guardian is a small process beside the library
//   (elastic-guardian). It starts workers on request, reaps them and tells their exits; when its
//   caller dies, however suddenly, it kills every descendant, those that called setsid() and forked
//   twice included. Workers lead sessions of their own. docs/supervision.md has the whole contract.
//
// Started, exited and "nothing of it is left" are separate facts with separate events.
//
// Thread rule: any member from any thread; next_event() by one thread at a time. In a child that
// was forked without exec the object does nothing: the workers are the parent's.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

// One worker's program. Prepared before the fork; the child only makes system calls.
struct WorkerCommand {
  // argv[0] is searched in the PATH of `env` unless it contains a slash. A file without "#!" that
  // is no program is an error (ENOEXEC), not a shell script.
  std::vector<std::string> argv;
  // The whole environment, "NAME=value".
  std::vector<std::string> env;
  std::string cwd;  // "": the caller's when the group was created
  // Files that receive the streams, created or truncated (mode 0644) and appended to; a relative
  // path counts from the caller's directory, not from `cwd`. "": inherited.
  std::string stdout_path;
  std::string stderr_path;
};

enum class ExitKind : std::uint8_t {
  kNotStarted,  // fork, chdir, open or exec failed: see stage, error and path
  kExited,      // by exit(code)
  kSignaled,    // by a signal
  kUnknown,     // not told: it has not ended, or the guardian died before it could tell
};

// How a worker ended.
struct WorkerExit {
  ExitKind kind = ExitKind::kUnknown;
  int code = 0;                // kExited: 0..255
  int signal = 0;              // kSignaled
  bool core_dumped = false;    // kSignaled
  bool stopped_by_us = false;  // after a stop() had reached it: no failure of its own
  bool killed_by_us = false;   // and it was still running when SIGKILL was sent to what was left
  // kNotStarted: "pipe", "fork", "open", "chdir", "exec", or "exec interpreter of" (its "#!" line
  // names what cannot be executed).
  std::string stage;
  int error = 0;     // kNotStarted: errno
  std::string path;  // kNotStarted: what could not be opened or executed
  // kNotStarted: the start timeout if that was exceeded in this stage (error is ETIMEDOUT).
  std::optional<Duration> start_timeout;
  Instant at;  // when the kernel told

  bool succeeded() const { return kind == ExitKind::kExited && code == 0; }
  // As a shell tells it: the code, 128+n for a signal, 127 or 126 for what could not be executed.
  int shell_code() const;
  // "exited with code 3", "killed by signal 9 (SIGKILL)", "could not be started: exec /x: …".
  std::string describe() const;
};

struct WorkerEvent {
  enum class Kind : std::uint8_t {
    kStarted,       // one worker runs its program (exec succeeded); pid and at are set
    kStartDelayed,  // the kernel has no process left for a worker (exit says why). The start is
                    // tried again until the start timeout; told once in a generation
    kExited,        // one worker ended, or never began; `exit` is set
    kGroupEnded,    // every worker of the generation has ended and nothing of their groups is left
    kStuck,         // 10 s after SIGKILL something of the group still lives (a process in an
                    // uninterruptible wait, say); `message` names it, local_rank and pid the first
                    // worker of those. kGroupGone may still come
    kGuardianLost,  // the guardian died; no further event comes, `message` says what is known
  };
  Kind kind = Kind::kStarted;
  std::uint32_t generation = 0;  // counts start() calls, from 1
  int local_rank = -1;
  int pid = -1;
  Instant at;
  WorkerExit exit;
  bool kill_sent = false;  // kStuck: whether SIGKILL was sent at all
  std::string message;
};

// Who gets the signal of a stop() or forward(). SIGKILL always hits everything.
enum class SignalScope : std::uint8_t {
  kGroup,   // every process of each worker's group, also when the worker itself has ended
  kLeader,  // the workers alone, not their children
};

struct WorkerGroupOptions {
  // The guardian's executable; "": found beside the library or where it was installed.
  std::string guardian_path;
  // The caller's process becomes a child subreaper (prctl(2)) and, should the guardian die, kills
  // the workers' orphans itself. Only for a program whose other children may be killed too: the
  // command line does it; a library host leaves it off and relies on the guardian.
  bool become_subreaper = false;
  // How long a worker may take until its program is executed. One that hangs before (its directory,
  // output file or program is on a mount that does not answer) is killed and told as kNotStarted.
  Duration start_timeout = std::chrono::seconds(60);
};

class ELASTIC_EXPORT WorkerGroup {
 public:
  // Starts the guardian and the thread that talks to it.
  static Result<std::unique_ptr<WorkerGroup>> create(const WorkerGroupOptions& options);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  ~WorkerGroup();  // kills whatever runs

  // Starts one worker for each command; local ranks are positions. Events tell the outcome of each.
  // kFailedPrecondition while a generation has not ended by kGroupGone.
  Status start(std::vector<WorkerCommand> commands);
  // Sends `signal` (and SIGCONT); SIGKILL to what is left when `grace` is over: one deadline for
  // the group. A second call may only shorten the deadline. SIGKILL, or no grace, kills at once.
  // Whatever the workers left behind is killed as soon as the last of them has ended.
  void stop(int signal, Duration grace, SignalScope scope = SignalScope::kGroup);
  // Delivers a signal to every worker, or to one, without stopping any.
  void forward(int signal, SignalScope scope = SignalScope::kGroup,
               std::optional<int> local_rank = std::nullopt);
  // The next event; nullopt when the deadline passes first, or when `interrupted` says to give up
  // (asked whenever a signal interrupts the wait).
  std::optional<WorkerEvent> next_event(Instant deadline,
                                        const std::function<bool()>& interrupted = {});

 private:
  class Impl;
  explicit WorkerGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
