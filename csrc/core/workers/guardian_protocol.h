#pragma once

// What an agent and its guardian say to each other over their socketpair.
//
// Requests go to the guardian, events come back. A frame is a u32 length and that many bytes: one
// byte for the message, then its fields. Integers are little endian; `bytes` is a u32 length, that
// many bytes and a NUL, so that what was received can be handed to the kernel where it lies; a list
// is a u32 count and that many `bytes`. Both ends are of one build: hello carries the version.
//
// Pure. What is decoded are views into the caller's buffer.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic::guardian {

inline constexpr std::uint32_t kProtocolVersion = 2;

// Where the guardian finds its end of the channel.
inline constexpr int kChannelDescriptor = 3;

// The kernel's own bound on arguments and environment is 6 MiB (execve(2)).
inline constexpr std::size_t kFrameBytesMax = std::size_t{8} << 20;
inline constexpr std::size_t kFrameHeaderBytes = sizeof(std::uint32_t);
inline constexpr std::size_t kListItemsMax = 1u << 16;

// How a process is made. Other kinds (a fork of a warm process) may follow.
enum class StartKind : std::uint8_t { kExec };
inline constexpr std::size_t kStartKindCount = 1;

// When the guardian kills a process: a worker in the next sweep, with everything that it left
// running; a helper only when the agent is gone.
enum class Lifetime : std::uint8_t { kWorker, kHelper };
inline constexpr std::size_t kLifetimeCount = 2;

// Which of a worker's streams are the descriptor that came with its start request: sent as
// SCM_RIGHTS with the frame's first byte.
inline constexpr std::uint8_t kPassedStdout = 1;
inline constexpr std::uint8_t kPassedStderr = 2;

// Starts one process. Every string is followed by a NUL and holds none.
struct StartRequest {
  // The caller's. A worker's is free again after the next sweep, a helper's when its end was told.
  std::uint32_t id = 0;
  StartKind kind = StartKind::kExec;
  Lifetime lifetime = Lifetime::kWorker;
  std::uint8_t passed = 0;  // kPassedStdout, kPassedStderr
  std::vector<std::string_view> argv;
  std::vector<std::string_view> env;
  std::string_view cwd;
  std::string_view stdout_path;
  std::string_view stderr_path;
};

// The id in a SignalRequest that stands for every worker of the generation; no process has it.
inline constexpr std::uint32_t kEveryWorker = 0xffffffff;

// Signals one process, or every worker that was started since the last sweep. A process that has
// ended meanwhile is skipped.
struct SignalRequest {
  int signal = 0;
  SignalScope scope = SignalScope::kGroup;
  bool is_stop = false;  // a process that ends after it was stopped by us: see ExitedEvent
  std::uint32_t id = kEveryWorker;
};

// Kills every worker that has not executed its program yet; each is answered by a NotStartedEvent
// that names the system call in which it hangs. What has been executed meanwhile is not affected.
struct CancelStartsRequest {};

// Kills every descendant of the guardian and reaps it, except helpers and the processes below them;
// answered by KillSentEvent, and by SweptEvent when none is left.
struct SweepRequest {};

using Request = std::variant<StartRequest, SignalRequest, CancelStartsRequest, SweepRequest>;

// The first event of every guardian.
struct HelloEvent {
  std::uint32_t version = 0;
};

// The worker's program was executed.
struct StartedEvent {
  std::uint32_t id = 0;
  int pid = 0;
  Instant at;
};

// Where a start can fail.
enum class Stage : std::uint8_t { kPipe, kFork, kOpen, kChdir, kExec, kInterpreter };
inline constexpr std::size_t kStageCount = 6;
const char* to_string(Stage stage);  // as in WorkerExit::stage

struct NotStartedEvent {
  std::uint32_t id = 0;
  Stage stage = Stage::kExec;
  int error = 0;           // errno
  bool timed_out = false;  // cancelled while it was in this stage
  Instant at;
  std::string_view path;
};

enum class ExitCause : std::uint8_t { kExited, kSignaled, kDumpedCore };
inline constexpr std::size_t kExitCauseCount = 3;

struct ExitedEvent {
  std::uint32_t id = 0;
  ExitCause cause = ExitCause::kExited;
  int value = 0;         // the code, or the signal
  bool stopped = false;  // a stop had reached it first
  bool killed = false;   // and it was still running when the sweep sent SIGKILL
  Instant at;            // when the kernel told
};

// The sweep has sent SIGKILL to everything that it found.
struct KillSentEvent {
  int refused_pid = 0;  // a process that the guardian may not signal (of another user); 0: none
};

struct SweptEvent {};

using Event =
    std::variant<HelloEvent, StartedEvent, NotStartedEvent, ExitedEvent, KillSentEvent, SweptEvent>;

// A start request's frame from what the public interface takes; its size says whether it fits
// kFrameBytesMax, the rest is the caller's to check (contains_nul, kListItemsMax).
void append_start(std::string* out, std::uint32_t id, const WorkerCommand& command,
                  Lifetime lifetime = Lifetime::kWorker, std::uint8_t passed = 0);
void append_signal(std::string* out, const SignalRequest& request);
void append_cancel_starts(std::string* out);
void append_sweep(std::string* out);
void append_event(std::string* out, const Event& event);

// Whether a string of the command holds a NUL, which no argument, variable or path can.
bool contains_nul(const WorkerCommand& command);

enum class FrameStatus : std::uint8_t { kFrame, kNeedMore, kViolation };

// Bytes that arrived, cut into frames.
class FrameBuffer {
 public:
  void append(std::string_view bytes);
  // kFrame: `payload` is the next frame's, valid until the next append(). kViolation: its length is
  // zero or above the limit; the stream is of no more use.
  FrameStatus next(std::string_view* payload);

 private:
  std::string bytes_;
  std::size_t consumed_ = 0;
};

// False: not a message of the protocol.
bool decode_request(std::string_view payload, Request* request);
bool decode_event(std::string_view payload, Event* event);

}  // namespace elastic::guardian
