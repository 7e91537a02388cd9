#pragma once

// One node's agent: joins the job's rounds, and starts, supervises and restarts the node's workers.
//
//   auto agent = elastic::Agent::start(options);
//   while (auto event = (*agent)->next_event(elastic::Instant::max())) log(*event);
//   return (*agent)->result().exit_code;
//
// The rendezvous decides which nodes are members of a round, whether another round follows, and how
// the job ends. In each round the agent computes every worker's environment, starts the workers and
// supervises them. The agent of rank 0 opens a new, empty store for the round. When a worker fails
// on any node, all workers are stopped, and the next round begins if the restart budget is not
// spent. One native thread does all this; nothing polls.
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
#include "elastic/coordinator.h"
#include "elastic/export.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// Exit codes of the launcher itself; any other code is the code of the worker that failed first.
inline constexpr int kExitUsage = 2;             // an invalid flag, value, file or variable
inline constexpr int kExitInternal = 70;         // an error in elastic itself
inline constexpr int kExitSupervisionLost = 71;  // the guardian died, or fork failed
inline constexpr int kExitCannotStart = 72;      // a worker's program could not be executed
inline constexpr int kExitCannotServe = 73;      // port in use, or not an address of this host
inline constexpr int kExitCannotLog = 74;        // the log directory cannot be created or written
inline constexpr int kExitJoinTimedOut = 75;     // too few nodes joined in time; try again later
inline constexpr int kExitRejected = 76;  // settings, version or protocol differ from the job's
inline constexpr int kExitCoordinatorLost = 77;  // unreachable for store_grace; workers stopped
inline constexpr int kExitNodeLost = 78;         // too few nodes remain, and none replaced them
inline constexpr int kExitBadHost = 79;          // the host was found bad, or is excluded
inline constexpr int kExitStoppedAtStep = 80;    // every rank stopped at an agreed step; resumable
inline constexpr int kExitPartial = 81;    // ranks still ran straggler_timeout after another's exit
inline constexpr int kExitJobClosed = 82;  // the job was closed without an exit code

// The exit code of the agents of a job that ended with this result.
ELASTIC_EXPORT int exit_code_of(const JobResult& job);

// The exit code of an agent whose job has ended because this worker failed.
ELASTIC_EXPORT int exit_code_of(const WorkerExit& exit);

// The ranks of one worker in a round.
struct WorkerAssignment {
  int local_rank = 0;
  int rank = 0;
  int role_rank = 0;
  int world_size = 0;
  int role_world_size = 0;
};

// The values that all workers of a round share, and this node's part of the round.
struct RoundInfo {
  std::uint64_t round = 0;       // from 1; see shown_round()
  std::uint32_t generation = 1;  // counts the jobs that used this id one after another
  int restart_count = 0;         // restarts that were charged to the budget
  int membership_changes = 0;    // rounds whose members differ from the previous round's
  int group_rank = 0;            // this node
  int group_world_size = 1;      // nodes
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::vector<WorkerAssignment> workers;
  std::optional<RoundCause> cause;  // why the round before ended; nullopt: this is the first one
  ResumePoint resume;               // the snapshots with which all ranks continue
};

// A failed worker of this node: what the other nodes receive (`at` is on the clock of this process,
// `evidence` is always set, `message` tells whether that repeats earlier rounds), and what only
// this node knows.
struct WorkerFailure : FailureReport {
  int pid = -1;
  WorkerExit exit;  // kUnknown, or stopped_by_us, if it failed and was stopped before it ended
  std::string fingerprint;  // equal for failures that look the same
  std::string error_file;   // TORCHELASTIC_ERROR_FILE of the worker, which may not exist; or ""
  std::string stdout_path;  // "" unless stdout was written to a file
  std::string stderr_path;
  // The last lines of stderr, at most 50 lines and 16 KiB of UTF-8. Contains stdout too if both are
  // the same file. "" if stderr was written to a file or not captured.
  std::string stderr_tail;

  // "rank 3 (local rank 1, pid 77) exited with code 3"
  ELASTIC_EXPORT std::string describe() const;
};

// The grace period after a second Agent::request_stop().
inline constexpr Duration kRepeatedStopGrace = std::chrono::seconds(5);

// The states have torch's names.
enum class AgentState : std::uint8_t {
  kInit,       // a round is being formed; no worker exists here
  kHealthy,    // the workers of the round are starting, running, or done
  kUnhealthy,  // the round has ended: a worker failed, or the members change; workers are stopped
  kStopped,    // this node stops on request, at an agreed step, or because it leaves the job
  kSucceeded,  // every worker of this node exited with 0, or the whole job has succeeded
  kFailed,     // the job has failed, or this node cannot join it
  kUnknown,    // control of the workers was lost
};
ELASTIC_EXPORT const char* to_string(AgentState state);  // "INIT", "HEALTHY", …

struct AgentResult {
  AgentState state = AgentState::kUnknown;
  int exit_code = 0;    // the same on every node that received the job's result
  std::string message;  // one sentence; "" if all workers succeeded
  // The failed workers of this node in its last round, earliest first. Workers that had not failed
  // when the agent stopped them are not included.
  std::vector<WorkerFailure> failures;
  // The worker of `job` is one of `failures`: of several nodes, this one ended the job.
  bool is_cause = false;
  // The result that every node receives. nullopt: this agent ended without receiving it.
  std::optional<JobResult> job;

  // What a launcher prints at the end: the message, the error and the last output of the first
  // failure, and this node's others. Lines without a final newline; "" if all workers succeeded.
  ELASTIC_EXPORT std::string report() const;
};

// How a round ended on this node.
struct AgentRoundEnd {
  // "worker_failed", "node_lost", "node_left", "nodes_joined", "rejoin", "evicted"; "": no order.
  std::string cause;
  std::optional<Instant> ordered;  // when the order to restart was received
  // When the last process had ended; with `kept`, when the last worker had left the round.
  std::optional<Instant> stopped;
  bool kept = false;                    // the workers take part in the next round
  std::vector<WorkerFailure> failures;  // of this node, earliest first; without paths
};

// The first step that a worker of this node has reported in a round (elastic/worker.h).
struct AgentFirstStep {
  std::int64_t step = 0;  // the number of complete steps
  // When the first worker had opened its channel, when the first client had connected to the
  // round's store, and when the last key was added to it: process groups exchange their addresses
  // there. nullopt: not before this step, or the store is on another node.
  std::optional<Instant> opened;
  std::optional<Instant> store_used;
  std::optional<Instant> store_filled;
  // The steps that this node's workers had completed in earlier rounds and make again, this one
  // among them; -1: they had reported none.
  std::int64_t lost_steps = -1;
};

struct AgentEvent {
  enum class Kind : std::uint8_t {
    kProgress,          // message: what the rendezvous waits for, or why it cannot be reached
    kCoordinatorLog,    // message: a log line of the coordinator that this agent hosts
    kNotice,            // message: a sentence about how workers are started
    kRoundStarting,     // round and log_dir are set; the workers start next
    kWorkerStarted,     // local_rank, pid
    kWorkersRunning,    // all workers of this node have started
    kWorkerExited,      // local_rank, pid, exit
    kFirstStep,         // local_rank, first_step: once in a round, if a worker reports steps
    kStopping,          // a round ends; message: the reason, and how its workers are stopped
    kRestarting,        // another round follows; message: the reason and the remaining budget
    kHang,              // the job hangs; message: one screen, which every node receives
    kStraggling,        // a rank makes no progress while others advance; message: one sentence
    kStalled,           // ranks wait for one that does nothing; message: one sentence
    kStallOver,         // they wait no more; message: one sentence
    kMismatch,          // ranks called operations of different sizes; message: one sentence
    kDrain,             // message: how far the stop at an agreed step is, which every node receives
    kCoordinatorMoved,  // coordinator, moved; message: one sentence
    kHostExcluded,      // message: one sentence, which every node receives
    kHostReadmitted,    // the same
    kNodeCheck,         // check; message: what it has found, as one sentence
    kAdviceAsked,       // failure: advise() is the answer
    kFinished,          // result() is final; this is the last event
  };
  Kind kind = Kind::kFinished;
  Instant at;
  AgentState state = AgentState::kInit;
  std::shared_ptr<const RoundInfo> round;  // shared by all events of a round; null before round 1
  int local_rank = -1;
  int pid = -1;
  WorkerExit exit;
  std::string log_dir;  // kRoundStarting: this round's directory; "" if the round ended before
  std::string message;
  // kProgress: the time of what the message ends with (", gives up").
  std::optional<Instant> deadline;
  std::optional<AgentRoundEnd> ended;        // kRestarting
  std::optional<AgentFirstStep> first_step;  // kFirstStep
  bool hosts_coordinator = false;            // this agent runs the job's coordinator
  // Set by kRoundStarting and kCoordinatorMoved; null: the job has no coordinator.
  std::shared_ptr<const CoordinatorInfo> coordinator;
  std::optional<CoordinatorMove> moved;  // kCoordinatorMoved
  std::optional<AgentCheck> check;       // kNodeCheck
  std::optional<WorkerFailure> failure;  // kAdviceAsked
};

class ELASTIC_EXPORT Agent {
 public:
  // Checks the options (kInvalidArgument), starts the guardian and the thread, and begins to join
  // the rendezvous. A later failure (coordinator unreachable, port in use, log directory not
  // writable, …) is reported by result(), not by start().
  static Result<std::unique_ptr<Agent>> start(AgentOptions options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();  // kills running workers and removes the temporary directory

  // Waits for the next event. Returns nullopt when the deadline passes, after kFinished was
  // delivered, or when `interrupted` (called when a signal interrupts the wait) returns true.
  std::optional<AgentEvent> next_event(Instant deadline,
                                       const std::function<bool()>& interrupted = {});
  // A call of next_event() in another thread checks its `interrupted` now.
  void wake();
  // Leaves the job, stops the workers with `signal` and `stop_grace`, then finishes with exit code
  // 128 + signal; with success if all workers of this node had succeeded. The other nodes are
  // notified at once, before the workers have ended. A second call shortens the grace period to
  // kRepeatedStopGrace; a third one, or the second if it shortens nothing, kills the workers.
  void request_stop(int signal);
  // Requests that all ranks of the job stop at one step (docs/preemption.md), because of `signal`.
  // The job ends with kExitStoppedAtStep; or, if that is not possible within `limit`, by SIGTERM to
  // all workers. As request_stop(signal) if this node has no workers, or the rendezvous no
  // coordinator. request_stop() may follow.
  void request_drain(int signal, Duration limit);
  // The answer to kAdviceAsked about a worker of this round (RoundInfo::round), within half of
  // node_timeout, five seconds at most. nullopt: as without advice.
  void advise(std::uint64_t round, int local_rank, std::optional<FailureAdvice> advice);
  // Delivers a signal to the running workers of this node, not to their children, and does not stop
  // them. Without running workers it has no effect.
  void forward(int signal);
  // True in a process that was forked after start(). There next_event() returns nullopt at once and
  // request_stop() has no effect.
  bool is_in_child() const;
  // REQUIRES: kFinished was delivered.
  const AgentResult& result() const;

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
