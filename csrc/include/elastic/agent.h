#pragma once

// One node's agent: takes part in the job's rounds, runs the node's workers and keeps them alive.
//
//   auto agent = elastic::Agent::start(options);
//   while (auto event = (*agent)->next_event(elastic::Instant::max())) log(*event);
//   return (*agent)->result().exit_code;
//
// The rendezvous decides who takes part in a round, whether another one follows, and how the job
// ends; the agent follows it. In each round it works out every worker's environment, starts the
// workers and watches them; the agent of rank 0 opens a fresh, empty store for the round. When a
// worker fails anywhere, all are stopped and, while the budget lasts, the next round begins. One
// native thread does it; nothing polls.
//
// Thread rule: any member from any thread; next_event() by one thread at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/agent_options.h"
#include "elastic/export.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// Exit codes of the launcher itself; every other code is the first failing worker's.
inline constexpr int kExitUsage = 2;             // a bad flag, value, file or variable
inline constexpr int kExitInternal = 70;         // a fault of elastic's own
inline constexpr int kExitSupervisionLost = 71;  // the guardian died, or no process could be made
inline constexpr int kExitCannotStart = 72;      // a worker's program could not be executed
inline constexpr int kExitCannotServe = 73;      // the port is taken, or the address is not ours
inline constexpr int kExitCannotLog = 74;        // the log directory cannot be made or written
inline constexpr int kExitJoinTimedOut = 75;     // too few nodes came in time; try again later
inline constexpr int kExitRejected = 76;  // other settings, version or protocol than the job's
inline constexpr int kExitCoordinatorLost = 77;  // not reachable for store_grace; workers stopped
inline constexpr int kExitNodeLost = 78;         // too few nodes remain, and none replaced them
inline constexpr int kExitJobClosed = 79;  // somebody closed the job without a code of its own

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
  std::uint64_t round = 0;       // from 1
  std::uint32_t generation = 1;  // counts the jobs that used this id one after another
  int restart_count = 0;         // rounds so far that cost a restart
  int membership_changes = 0;    // rounds so far that began with other nodes than the one before
  int group_rank = 0;            // this node
  int group_world_size = 1;      // nodes
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
  // The last lines of its stderr (with those of its stdout where both are one file), at most 50
  // lines and 16 KiB of UTF-8; "" where it went to a file or was not captured.
  std::string stderr_tail;
  FailureEvidence evidence;  // as the other nodes get it
};

// As torch names them.
enum class AgentState : std::uint8_t {
  kInit,       // a round is being formed; no worker exists here
  kHealthy,    // the workers of the round are starting, running, or done
  kUnhealthy,  // the round has ended: a worker failed, or the members change; workers are stopped
  kStopped,    // we were asked to stop
  kSucceeded,  // every worker here exited 0, or the whole job has succeeded
  kFailed,     // the job has failed, or this node cannot take part
  kUnknown,    // control of the workers was lost
};
ELASTIC_EXPORT const char* to_string(AgentState state);  // "INIT", "HEALTHY", …

struct AgentResult {
  AgentState state = AgentState::kUnknown;
  int exit_code = 0;    // the same on every node that heard the job's result
  std::string message;  // one sentence; "" on success of all
  // Of this node's workers in its last round, earliest first, without those that we stopped.
  std::vector<WorkerFailure> failures;
  // What every node of the job is told. nullopt: this agent ended without hearing it.
  std::optional<JobResult> job;
};

struct AgentEvent {
  enum class Kind : std::uint8_t {
    kProgress,        // message: what the rendezvous waits for, or why it cannot be reached
    kCoordinatorLog,  // message: what the coordinator that this agent hosts logged
    kRoundStarting,   // round and log directory are known; workers are about to start
    kWorkerStarted,   // local_rank, pid
    kWorkersRunning,  // all of the round have started
    kWorkerExited,    // local_rank, pid, exit
    kStopping,        // workers are being stopped; message says why and how long they have
    kRestarting,      // another round follows; message says why and what is left of the budget
    kFinished,        // result() is final; no further event comes
  };
  Kind kind = Kind::kFinished;
  Instant at;
  AgentState state = AgentState::kInit;
  std::shared_ptr<const RoundInfo> round;  // one for all events of a round; null before the first
  int local_rank = -1;
  int pid = -1;
  WorkerExit exit;
  std::string log_dir;  // kRoundStarting: this round's directory; "": it ended before it had one
  std::string message;
};

class ELASTIC_EXPORT Agent {
 public:
  // Checks the options (kInvalidArgument), starts guardian and thread, and goes to the rendezvous.
  // What goes wrong from there on (nobody answers, the port is taken, the log directory cannot be
  // written, …) is a result, not an error of start().
  static Result<std::unique_ptr<Agent>> start(AgentOptions options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();  // kills what runs, and removes the temporary directory

  // The next event; nullopt when the deadline passes, after kFinished was delivered, or when
  // `interrupted` (asked whenever a signal interrupts the wait) says to give up.
  std::optional<AgentEvent> next_event(Instant deadline,
                                       const std::function<bool()>& interrupted = {});
  // Leaves the job, which the other nodes hear at once, stops the workers with `signal` and
  // `stop_grace`, then finishes with 128 + signal; or with success, if all workers here had
  // succeeded. A second call kills at once.
  void request_stop(int signal);
  // Whether this is the copy in a process that was forked after start(). It does nothing there:
  // next_event() returns nullopt at once, request_stop() has no effect.
  bool is_in_child() const;
  // REQUIRES: kFinished was delivered.
  const AgentResult& result() const;

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
