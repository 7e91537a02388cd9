#pragma once

// One node's agent: takes part in the job's rounds, runs the node's workers and keeps them alive.
//
//   auto agent = elastic::Agent::start(options);
//   while (auto event = (*agent)->next_event(elastic::Instant::max())) log(*event);
//   return (*agent)->result().exit_code;
//
// In each round the agent opens a fresh, empty store on a port of its own, works out every worker's
// environment, starts the workers and watches them. When one fails, all are stopped and, while the
// budget lasts, the next round begins. One native thread does it; nothing polls.
//
// Thread rule: any member from any thread; next_event() by one thread at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/store_options.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// Exit codes of the launcher itself; every other code is the first failing worker's.
inline constexpr int kExitUsage = 2;             // a bad flag, value, file or variable
inline constexpr int kExitInternal = 70;         // a fault of elastic's own
inline constexpr int kExitSupervisionLost = 71;  // the guardian died; retry on this node may help
inline constexpr int kExitCannotStart = 72;      // a worker's program could not be executed
inline constexpr int kExitCannotServe = 73;      // the port is taken, or the address is not ours
inline constexpr int kExitCannotLog = 74;        // the log directory cannot be made or written
inline constexpr int kExitJoinTimedOut = 75;     // too few nodes came in time; try again later
inline constexpr int kExitRefused = 76;  // other settings, version or protocol than the job's
inline constexpr int kExitCoordinatorLost = 77;  // not reachable for store_grace; workers stopped
inline constexpr int kExitNodeLost = 78;         // too few nodes remain and no restart is left
inline constexpr int kExitJobClosed = 79;  // somebody closed the job without a code of its own

// Where one worker's streams go.
enum class StreamTarget : std::uint8_t { kInherit, kFile, kTee, kDiscard };

// What one local rank runs. The agent adds the rank variables to `env`; its own entries win.
struct WorkerTemplate {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // "NAME=value", for this worker alone; wins over everything else
  StreamTarget stdout_target = StreamTarget::kInherit;
  StreamTarget stderr_target = StreamTarget::kInherit;
};

struct AgentOptions {
  std::string run_id = "none";
  std::string role = "default";
  std::vector<WorkerTemplate> workers;  // one for each local rank
  std::vector<std::string> env;         // "NAME=value", what every worker inherits
  std::string cwd;                      // "": the caller's

  // Restarts because of failed workers before the agent gives up.
  int max_restarts = 0;
  // From TERM to KILL, on every path: a failure, a signal to the agent, the end.
  Duration stop_grace = std::chrono::seconds(30);
  // Who gets the signal that begins the grace; the kill at its end hits everything.
  SignalScope stop_scope = SignalScope::kGroup;

  // The address that this node's workers connect to, bound exactly. Of a name start() takes the
  // first address; MASTER_ADDR is always a number.
  std::string local_addr = "127.0.0.1";
  // 0: a fresh port for every round. Otherwise this port in all rounds, emptied in between.
  std::uint16_t master_port = 0;
  StoreLimits store_limits;

  // Logs and error files go to <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/, where n
  // counts this agent's rounds from 0. "": a private temporary directory below $TMPDIR, which
  // ~Agent() removes, so that what the workers wrote can be read as long as there is an agent.
  std::string log_dir;
  // Put before each line of a stream that is sent to the console too. ${role_name}, ${rank} and
  // ${local_rank} are replaced.
  std::string line_prefix = "[${role_name}${local_rank}]:";

  WorkerGroupOptions guardian;
};

// One worker's place in a round.
struct WorkerAssignment {
  int local_rank = 0;
  int rank = 0;
  int role_rank = 0;
  int world_size = 0;
  int role_world_size = 0;
};

// What all workers of a round agree on, and this node's share of it.
struct RoundInfo {
  std::uint64_t round = 0;   // from 1
  int restart_count = 0;     // failures so far that cost a restart
  int group_rank = 0;        // this node
  int group_world_size = 1;  // nodes
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::vector<WorkerAssignment> workers;
};

struct WorkerFailure {
  int local_rank = 0;
  int rank = 0;
  int pid = -1;
  WorkerExit exit;
  std::string error_file;   // "" or the file that the worker may have written
  std::string stdout_path;  // "" unless it went to a file
  std::string stderr_path;
};

// As torch names them.
enum class AgentState : std::uint8_t {
  kInit,       // a round is being formed; no worker exists
  kHealthy,    // the workers of the round are starting, running, or done
  kUnhealthy,  // a worker failed; the others are being stopped
  kStopped,    // we were asked to stop
  kSucceeded,  // every worker exited 0
  kFailed,     // a worker failed, and no restart was left or could help
  kUnknown,    // control of the workers was lost
};
ELASTIC_EXPORT const char* to_string(AgentState state);  // "INIT", "HEALTHY", …

struct AgentResult {
  AgentState state = AgentState::kUnknown;
  int exit_code = 0;
  std::string message;  // one sentence; "" on success
  // Of the last round, earliest first, without the workers that we stopped.
  std::vector<WorkerFailure> failures;
};

struct AgentEvent {
  enum class Kind : std::uint8_t {
    kRoundStarting,   // round and log directory are known; workers are about to start
    kWorkerStarted,   // local_rank, pid
    kWorkersRunning,  // all of the round have started
    kWorkerExited,    // local_rank, pid, exit
    kStopping,        // workers are being stopped; message says why and how long they have
    kRestarting,      // the next round follows; message says why and what is left of the budget
    kFinished,        // result() is final; no further event comes
  };
  Kind kind = Kind::kFinished;
  Instant at;
  AgentState state = AgentState::kInit;
  std::shared_ptr<const RoundInfo> round;  // one for all events of a round; null before the first
  int local_rank = -1;
  int pid = -1;
  WorkerExit exit;
  std::string log_dir;  // kRoundStarting: this round's directory
  std::string message;
};

class ELASTIC_EXPORT Agent {
 public:
  // Checks the options (kInvalidArgument), starts guardian and thread, and begins the first round.
  // What goes wrong from there on (the port is taken, the log directory cannot be written, …) is a
  // result, not an error of start().
  static Result<std::unique_ptr<Agent>> start(AgentOptions options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();  // kills what runs, and removes the temporary directory

  // The next event; nullopt when the deadline passes, after kFinished was delivered, or when
  // `interrupted` (asked whenever a signal interrupts the wait) says to give up.
  std::optional<AgentEvent> next_event(Instant deadline,
                                       const std::function<bool()>& interrupted = {});
  // Stops the workers with `signal` and `stop_grace`, then finishes with 128 + signal. A second
  // call kills at once.
  void request_stop(int signal);
  // REQUIRES: kFinished was delivered.
  const AgentResult& result() const;

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
