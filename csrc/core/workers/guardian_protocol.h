#pragma once

// The messages between an agent and its guardian over their socketpair.
//
// The agent sends requests, the guardian sends events, each as a frame (core/base/frame.h) of its
// place in Request or Event and its fields (core/base/fields.h). A NUL follows each string, so that
// received ones are passed to the kernel without a copy. Both ends are of one build: hello has the
// version.
//
// Pure. Decoded messages contain views into the caller's buffer.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/frame.h"
#include "core/drain/drain_types.h"
#include "core/snapshot/snapshot_types.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic::guardian {

inline constexpr std::uint32_t kProtocolVersion = 20;

// The guardian's descriptor of the channel.
inline constexpr int kChannelDescriptor = 3;
// The agent's liveness port, if it has one.
inline constexpr int kLivenessDescriptor = 4;

// A worker receives the variables of a ContinueRequest in one packet (worker/channel_name.h).
inline constexpr std::size_t kRoundEnvBytesMax = std::size_t{64} << 10;

// The kernel limits arguments and environment to 6 MiB (execve(2)).
inline constexpr std::size_t kFrameBytesMax = std::size_t{8} << 20;
inline constexpr core::FrameLimits kFrameLimits = {1, kFrameBytesMax};
inline constexpr std::size_t kListItemsMax = 1u << 16;
// CPU numbers are below this limit (the kernel's own limit is 8192).
inline constexpr std::uint32_t kCpusMax = 1u << 13;

// How a process is created. A template is a helper that imports Python modules and then forks
// workers on request (guardian/template.h); a request for one does not name streams. A worker that
// the template cannot fork is executed.
enum class StartKind : std::uint8_t { kExec, kTemplate, kFork };

// When the guardian kills a process: a worker in the next sweep, with every process that it
// started; a helper only when the agent has ended.
enum class Lifetime : std::uint8_t { kWorker, kHelper };

// Which of a worker's streams use the descriptor that was passed with its start request
// (SCM_RIGHTS, with the frame's first byte).
inline constexpr std::uint8_t kPassedStdout = 1;
inline constexpr std::uint8_t kPassedStderr = 2;

// Starts one process. Every string is followed by a NUL and contains none.
struct StartRequest {
  // Chosen by the caller. A worker's id may be reused after the next sweep, a helper's after its
  // WorkerExit.
  std::uint32_t id = 0;
  StartKind kind = StartKind::kExec;
  Lifetime lifetime = Lifetime::kWorker;
  std::uint8_t passed = 0;  // kPassedStdout, kPassedStderr
  // kFork: how long the worker waits for a template that is not ready; then it is executed.
  Duration template_wait{};
  bool has_channel = false;
  std::vector<std::string_view> argv;
  std::vector<std::string_view> env;
  std::string_view cwd;
  std::string_view stdout_path;
  std::string_view stderr_path;
  std::vector<std::uint32_t> cpus;  // empty: the guardian's own
};

// As the id in a SignalRequest: every worker of the generation. No process has this id.
inline constexpr std::uint32_t kEveryWorker = 0xffffffff;

// The id of an agent's template.
inline constexpr std::uint32_t kTemplateId = 0xfffffffe;
// Its other helpers have the ids from here to it.
inline constexpr std::uint32_t kFirstHelperId = 0xffff0000;

// Signals one process, or every worker that was started since the last sweep. A process that has
// ended is skipped.
struct SignalRequest {
  int signal = 0;
  SignalScope scope = SignalScope::kGroup;
  bool is_stop = false;  // marks the process as stopped: see WorkerExit::stopped_by_us
  std::uint32_t id = kEveryWorker;
};

// Kills every worker that has not executed its program yet, and sends an EndedEvent for each,
// with the system call in which it blocks. Workers that have executed it are not affected.
struct CancelStartsRequest {
  Duration start_timeout{};  // that was exceeded, for WorkerExit::start_timeout
};

// Kills and reaps every descendant of the guardian, except helpers and the processes below them.
// The guardian sends KillSentEvent, and SweptEvent when no process is left.
struct SweepRequest {
  bool reports_leftovers = false;  // sends a LeftoverEvent, if there are such processes
};

// Every worker has ended: sends a LeftoverEvent for the processes that they left running, and one
// with a count of 0 when the last of them has ended, or if there is none.
struct AwaitLeftoversRequest {};

// Reads the workers' pages this often while a worker reports steps or watches its collective
// operations, and sends a ProgressEvent when something has changed. Zero, as at the start: never.
struct WatchRequest {
  Duration interval{};
};

// Collects the stacks of every running worker, and sends a StacksEvent for each within `limit`.
struct StacksRequest {
  Duration limit{};
  // At once and without stacks: no worker is signalled, and the events have what it has worked.
  bool measures_work = false;
};

// Why the workers are stopped, for their pages. Sent before what stops them.
struct StopReasonRequest {
  std::string_view text;  // StopReason::describe()
};

// The round is over: every running worker that can take part in a further round (Mark::kMember) is
// to leave its collectives. Each reports Mark::kLeft. A request for an earlier round than the last
// one is ignored.
struct CutRequest {
  std::uint64_t round = 0;
};

// The worker `id`, which has left its round, takes part in this one with these variables. Ignored
// if it has ended.
struct ContinueRequest {
  std::uint32_t id = 0;
  std::uint64_t round = 0;
  std::vector<std::string_view>
      env;  // "NAME=value"; together at most kRoundEnvBytesMax, with a NUL each
};

using Request = std::variant<StartRequest, SignalRequest, CancelStartsRequest, SweepRequest,
                             WatchRequest, StacksRequest, drain::StopStepRequest, CutRequest,
                             ContinueRequest, AwaitLeftoversRequest, StopReasonRequest,
                             snapshot::KeepRequest, snapshot::ConnectRequest>;

// Those of extensions, which the agent passes on. Each belongs to the round that runs.
using ExtensionRequest =
    std::variant<drain::StopStepRequest, snapshot::KeepRequest, snapshot::ConnectRequest>;

// The first event of every guardian.
struct HelloEvent {
  std::uint32_t version = 0;
  bool operator==(const HelloEvent&) const = default;
};

// The worker's program was executed.
struct StartedEvent {
  std::uint32_t id = 0;
  int pid = 0;
  Instant at;
  bool operator==(const StartedEvent&) const = default;
};

// The step of a start that failed.
enum class Stage : std::uint8_t { kPipe, kFork, kOpen, kChdir, kExec, kInterpreter, kAffinity };
const char* to_string(Stage stage);  // as in WorkerExit::stage

// A worker has ended, or could not be started.
struct EndedEvent {
  std::uint32_t id = 0;
  WorkerExit exit;
  bool operator==(const EndedEvent&) const = default;
};
// The start failed at this step, before the program was executed.
EndedEvent not_started(std::uint32_t id, Stage stage, int error, std::string_view path, Instant at);

// The sweep has sent SIGKILL to every process that it found.
struct KillSentEvent {
  int refused_pid = 0;  // a process that the guardian may not signal (of another user); 0: none
  // False: without /proc only the workers' process groups were found.
  bool found_all = true;
  bool operator==(const KillSentEvent&) const = default;
};

struct SweptEvent {
  bool operator==(const SweptEvent&) const = default;
};

// Processes that have outlived all workers: when a sweep begins, whose SIGKILL follows, or while
// their end is awaited.
struct LeftoverEvent {
  bool is_awaited = false;
  std::uint32_t count = 0;  // without their own children
  int pid = 0;              // of one of them
  std::string_view command;
  bool operator==(const LeftoverEvent&) const = default;
};

enum class TemplateNews : std::uint8_t {
  kImporting,  // text: the module
  kReady,      // it forks workers from now on
  kUnfit,      // it cannot fork workers, and exits; text: the module and the reason
  kStale,      // a file that it has loaded was changed, and it exits; text: the file
  kExecuted,   // worker `id` is executed although it was to be forked; text: the reason
  kLeftOut,    // a module of the script is not fit, and workers import it; text: the reason
};

struct TemplateEvent {
  TemplateNews news = TemplateNews::kImporting;
  std::uint32_t id = 0;  // of the template, or of the worker that is executed
  Instant at;
  std::string_view text;
  bool operator==(const TemplateEvent&) const = default;
};

// The progress of the workers that run and have reported a step, or wait in collective operations.
struct ProgressEvent {
  std::uint32_t reporting = 0;
  std::int64_t newest = -1;
  std::int64_t oldest = -1;
  std::uint32_t slowest = 0;  // the id of the worker with the oldest step
  Duration slowest_idle{};    // since it made progress
  Duration idle{};            // since one of them made progress
  Duration section_limit{};   // the longest limit of an open section; zero: none
  bool has_advanced = true;   // false: nothing but what follows has changed since the last event
  std::uint32_t waiting = 0;  // workers that wait in collective operations
  Duration waited{};          // of these, the one that waits for longest
  bool operator==(const ProgressEvent&) const = default;
};

// What a worker's channel shows once, after the start of its program or of another round in it.
enum class Mark : std::uint8_t {
  kOpened,     // a process has opened it
  kFirstStep,  // the first step of the round was reported
  kMember,     // the worker can take part in another round
  kLeft,       // it has left the round of the last CutRequest, or waits for its first round
  kRaised,     // an exception ends its main thread; not once
};

struct MarkEvent {
  std::uint32_t id = 0;
  Mark mark = Mark::kOpened;
  Instant at;
  std::int64_t step = -1;  // kFirstStep; kLeft: the last reported one, or -1
  bool operator==(const MarkEvent&) const = default;
};

// The evidence about one worker.
struct StacksEvent {
  std::uint32_t id = 0;
  std::int64_t step = -1;
  std::uint8_t state = '?';  // as in /proc/<pid>/stat
  std::string_view wait_channel;
  std::string_view text;
  std::string_view collectives;  // core/hang/collective_text.h, as the next one
  std::string_view groups;
  // Of the worker and its children, if the request measures it (os::ProcessWork).
  Duration cpu{};
  std::uint64_t io_bytes = 0;
  bool is_at_work = false;
  std::int32_t polling_threads = 0;
  bool operator==(const StacksEvent&) const = default;
};
// Every StacksEvent of a request was sent.
struct StacksDoneEvent {
  bool operator==(const StacksDoneEvent&) const = default;
};

// New signatures of the collective operations of one worker (worker/collective_blocks.h).
struct SignaturesEvent {
  std::uint32_t id = 0;
  bool is_last = false;  // of the workers that have new ones
  std::string_view signatures;
  std::string_view groups;  // as in StacksEvent
  bool operator==(const SignaturesEvent&) const = default;
};

using Event =
    std::variant<HelloEvent, StartedEvent, EndedEvent, KillSentEvent, SweptEvent, TemplateEvent,
                 ProgressEvent, StacksEvent, StacksDoneEvent, drain::StopStepEvent, MarkEvent,
                 LeftoverEvent, snapshot::HeldEvent, SignaturesEvent>;
using ExtensionEvent = std::variant<drain::StopStepEvent, snapshot::HeldEvent>;

// Appends a start request for a command of the public interface. The caller checks that the frame
// fits kFrameBytesMax, and the other limits (contains_nul, kListItemsMax).
void append_start(std::string* out, std::uint32_t id, const WorkerCommand& command,
                  Lifetime lifetime = Lifetime::kWorker, std::uint8_t passed = 0,
                  StartKind kind = StartKind::kExec, Duration template_wait = {});
void append_request(std::string* out, Request request);
void append_event(std::string* out, Event event);

// Whether a string of the command contains a NUL, which is invalid in arguments, variables, paths.
bool contains_nul(const WorkerCommand& command);

// Returns false if the payload is not a valid message.
bool decode_request(std::string_view payload, Request* request);
bool decode_event(std::string_view payload, Event* event);

}  // namespace elastic::guardian
