#pragma once

// The workers of one node: started, supervised and stopped together.
//
//   agent → guardian → workers. The guardian (elastic-guardian) is a small program that is
//   installed with the library. It starts workers on request, reaps them and reports their exits.
//   When its caller dies, even by SIGKILL, it kills every descendant, including daemons that called
//   setsid() and forked twice. Each worker leads its own session. docs/supervision.md has the whole
//   contract.
//
// Separate events report that a worker started, that it exited, and that no process of the group is
// left.
//
// Thread rule: any member from any thread; next_event() by one thread at a time. In a child after
// fork() the object does nothing: the workers belong to the parent.

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

// One worker's program.
struct WorkerCommand {
  // argv[0] is searched in the PATH of `env` unless it contains a slash. A text file without "#!"
  // fails with ENOEXEC; it is not run as a shell script.
  std::vector<std::string> argv;
  // The whole environment, "NAME=value".
  std::vector<std::string> env;
  std::string cwd;  // "": the caller's when the group was created
  // Files for the two streams; each is created or truncated (mode 0644), then appended to. A
  // relative path is relative to the caller's directory, not to `cwd`. "": inherited.
  std::string stdout_path;
  std::string stderr_path;
  // The numbers of the CPUs on which the worker may run. Empty: the caller's.
  std::vector<std::uint32_t> cpus;
  // Gives the worker a channel (elastic/worker.h): two more descriptors and ELASTIC_CHANNEL. It
  // starts without one if the kernel has no memory or descriptors left.
  bool has_channel = false;
};

enum class ExitKind : std::uint8_t {
  kNotStarted,  // fork, chdir, open or exec failed: see stage, error and path
  kExited,      // by exit(code)
  kSignaled,    // by a signal
  kUnknown,     // not reported: still running, or the guardian died before it could report
};

// How a worker ended.
struct WorkerExit {
  ExitKind kind = ExitKind::kUnknown;
  int code = 0;                // kExited: 0..255
  int signal = 0;              // kSignaled
  bool core_dumped = false;    // kSignaled
  bool stopped_by_us = false;  // ended after stop() had signalled it: not a failure of its own
  bool killed_by_us = false;   // and was still running when stop() sent SIGKILL
  // kNotStarted: the step that failed: "pipe", "fork", "set the CPU affinity of", "open", "chdir",
  // "exec", or "exec interpreter of" (the interpreter in its "#!" line cannot be executed).
  std::string stage;
  int error = 0;     // kNotStarted: errno
  std::string path;  // kNotStarted: the file or directory of that step
  // kNotStarted: the start timeout if it was exceeded in this stage (error is ETIMEDOUT).
  std::optional<Duration> start_timeout;
  Instant at;  // when the kernel reported the exit
  // kSignaled: an agent killed the worker, because the job hung or because it cannot reach the
  // store of its round (is_unreachable); one sentence with the evidence.
  std::string verdict;
  bool is_unreachable = false;
  bool ends_job = false;  // and the job must not be restarted
  // The agreed step at which the worker was told to stop (docs/preemption.md); -1: it was not.
  std::int64_t stop_step = -1;
  std::int64_t last_step = -1;  // that the worker has reported (elastic/worker.h); -1: none

  bool operator==(const WorkerExit&) const = default;

  bool succeeded() const { return kind == ExitKind::kExited && code == 0; }
  // The code as in a shell's $?: the exit code, 128+n for a signal, 127 (not found) or 126.
  int shell_code() const;
  // "exited with code 3", "killed by signal 9 (SIGKILL)", "could not be started: exec /x: …".
  std::string describe() const;
};

struct WorkerEvent {
  enum class Kind : std::uint8_t {
    kStarted,       // one worker runs its program (exec succeeded); pid and at are set
    kStartDelayed,  // fork failed for lack of processes or memory (`exit` has the error). It is
                    // retried until the start timeout; reported once in a generation
    kExited,        // one worker ended, or could not be started; `exit` is set
    kGroupEnded,    // every worker of the generation and every process of their groups has ended
    kStuck,         // 10 s after SIGKILL a process of the group still exists (for example in an
                    // uninterruptible wait); `message` names it, local_rank and pid identify
                    // the first such worker. kGroupEnded may follow later
    kGuardianLost,  // the guardian died; the last event. `message` has the known details
    kNotice,        // about the template process, or processes that the workers left running:
                    // `message` is one sentence for the log
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

// Receivers of the signal of stop() or forward(). SIGKILL always goes to every process.
enum class SignalScope : std::uint8_t {
  kGroup,   // every process of each worker's group, also after the worker itself has ended
  kLeader,  // the workers only, not their children
  // kLeader for a Python worker that has a handler for the signal, which may need its children to
  // save its state; they get the signal when it has ended. kGroup for the others.
  kHandler,
};

struct WorkerGroupOptions {
  // The guardian's executable; "": searched next to the library, then in the install directory.
  std::string guardian_path;
  // True: the calling process becomes a child subreaper (prctl(2)) and, if the guardian dies, kills
  // the orphaned workers itself. It may then also kill other orphaned descendants of the caller, so
  // only the launcher sets it; a program that embeds the library relies on the guardian.
  bool become_subreaper = false;
  // The limit from start() until a worker's program is executed. A worker that exceeds it (its
  // directory, output file or program is on a mount that does not respond) is killed and reported
  // as kNotStarted.
  Duration start_timeout = std::chrono::seconds(60);
  // How long processes that the workers left running (an upload in the background) may take to end
  // by themselves, if all workers have succeeded. kGroupEnded follows then; stop() ends the wait.
  // Zero: they are killed at once.
  Duration leftover_grace{};
  // The template process of Python workers (docs/warm-workers.md): it imports modules, and then
  // forks the workers, instead of the guardian executing them. Empty argv: there is none.
  WorkerCommand warm_template;
};

class ELASTIC_EXPORT WorkerGroup {
 public:
  // Starts the guardian, and the thread that exchanges messages with it.
  static Result<std::unique_ptr<WorkerGroup>> create(const WorkerGroupOptions& options);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  ~WorkerGroup();  // kills running workers

  // Starts one worker for each command; its index is the local rank. Events report the outcome of
  // each. kFailedPrecondition until the previous generation has ended (kGroupEnded).
  Status start(std::vector<WorkerCommand> commands);
  // Sends `signal` (and SIGCONT), then SIGKILL to all remaining processes when `grace` is over: one
  // deadline for the group. A second call can only shorten it. SIGKILL, or a grace of zero, kills
  // at once. Processes that the workers left behind are killed when the last worker has ended, or
  // after leftover_grace.
  void stop(int signal, Duration grace, SignalScope scope = SignalScope::kGroup);
  // Sends a signal to every worker, or to one, without stopping the group.
  void forward(int signal, SignalScope scope = SignalScope::kGroup,
               std::optional<int> local_rank = std::nullopt);
  // Waits for the next event. Returns nullopt when the deadline passes, or when `interrupted`
  // (called when a signal interrupts the wait) returns true.
  std::optional<WorkerEvent> next_event(Instant deadline,
                                        const std::function<bool()>& interrupted = {});
  // A call of next_event() in another thread checks its `interrupted` now.
  void wake();

 private:
  class Impl;
  explicit WorkerGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
