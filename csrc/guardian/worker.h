#pragma once

// The guardian's record of a worker, and the start of one.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/time.h"
#include "guardian/channel.h"
#include "os/base/fd.h"

namespace elastic::guardian {

// Written to the exec pipe by a child that could not be started.
struct StartFailure {
  Stage stage;
  int error;  // 0: not a failure, but the step in which a forked worker may block
  // kOpen: the descriptor; kExec, kInterpreter: the index of the candidate, or kNoCandidate.
  int index;
};
inline constexpr int kNoCandidate = -1;

// The current step of a start, in memory that the child shares: a child that hangs in a system call
// cannot report it.
class StartProgress {
 public:
  struct Step {
    Stage stage;
    int index;  // see StartFailure::index
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
  pid_t pid = -1;          // also its process group and session
  os::UniqueFd exec_pipe;  // read end; valid until the start has succeeded or failed
  StartProgress progress;  // likewise; of an executed program
  StartProgress::Step step{Stage::kFork, kNoCandidate};  // likewise; of a forked worker
  std::vector<std::string> candidates;               // the paths for execve, for the failure report
  Channel channel;                                   // invalid: it has none
  std::string argv0, cwd, stdout_path, stderr_path;  // for the failure report
  bool ended = false;      // its exit was reported; a zombie, so that its pid is not reused
  bool stopped = false;    // a stop signalled it while it was running
  int awaited_signal = 0;  // its group gets this signal when it has ended; 0: none
  bool killed = false;     // the sweep killed it while it was running
  // What the last sample of its page has shown, and when that changed.
  std::int64_t seen_step = -1;
  std::uint32_t seen_sections = 0;
  Instant progressed;
  std::uint32_t seen_signatures = 0;  // likewise
  std::uint32_t sent_signatures = 0;  // those that were reported
  bool is_asked = false;              // for its stacks, in the last request
  // Its page has the tentative step of the last StopStepRequest.
  bool takes_part = false;
  bool succeeded = false;  // it has ended with code 0
  // State of RoundChange. The rounds are their numbers plus 1; 0: none.
  pid_t known_member = 0;  // the process that was reported as one; 0: none
  std::uint64_t cut_sent = 0;
  std::uint64_t left = 0;   // reported
  std::uint64_t given = 0;  // the round that it was given
};

// Null: there is none with this id.
Worker* find_worker(std::vector<Worker>* workers, std::uint32_t id);

// Signals the worker if its children are not meant, or not yet. False: they are.
bool signal_alone(const SignalRequest& request, Worker* worker);

// The environment of the worker. An inherited variable names the channel of another worker, if
// launchers are nested.
std::vector<std::string_view> environment_of(const StartRequest& request, const Channel& channel);

// Of a process that forks workers (guardian/template.h), which has a socket to the guardian.
inline constexpr int kTemplateSocket = 3;

// Forks and executes. On success the worker has a pid and an exec pipe, which returns end of file
// when the program was executed, or a StartFailure. On failure `failure` has the error. `stream`
// replaces the streams that `request` names; negative: none. `socket` becomes the descriptor
// kTemplateSocket; negative: none.
bool spawn(const StartRequest& request, pid_t guardian, int stream, int socket, Worker* worker,
           StartFailure* failure);

// Makes the exec pipe; the result is the write end. Invalid, with errno set, without a descriptor.
os::UniqueFd open_exec_pipe(Worker* worker);

// The fields of the worker that the failure report needs.
void describe(const StartRequest& request, Worker* worker);

// The path that the failure names.
std::string failed_path(const Worker& worker, const StartFailure& failure);

}  // namespace elastic::guardian
