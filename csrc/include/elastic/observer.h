#pragma once

// A read-only view of a running job at its coordinator, for status displays.
//
//   auto observer = elastic::Observer::start({.endpoint_host = "node0", .endpoint_port = 29400});
//   auto job = (*observer)->next(deadline);  // the first snapshot; further calls: the next change
//
// An observer is no member of the job: it has no rank and no vote, and nothing that it sends
// changes the job, except the requests to drain it and to exclude hosts. The coordinator pushes
// changes, and only as fast as the observer accepts them.
//
// Thread rule: any member from any thread; next() by one thread at a time. Not usable in a child
// after fork().

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/coordinator.h"
#include "elastic/export.h"
#include "elastic/observed_hosts.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "elastic/token_options.h"

namespace elastic {

// "worker_failed", "node_lost", "node_left", "nodes_joined" or "rejoin".
ELASTIC_EXPORT const char* to_string(rdzv::RestartCause cause);

enum class ObservedWorkerState : std::uint8_t {
  kStarting,  // its program was not executed yet
  kRunning,
  kSucceeded,  // exited with 0
  kFailed,
  kStopped,  // ended after the agent had signalled it
};

struct ObservedWorker {
  int local_rank = 0;
  int rank = 0;  // global
  int pid = -1;  // on its node
  ObservedWorkerState state = ObservedWorkerState::kStarting;
  int exit_code = 0;  // as in a shell's $?

  bool operator==(const ObservedWorker&) const = default;
};

// What one agent reports about its workers while the job has an observer that requests it.
struct WorkerReport {
  std::uint64_t round = 0;
  std::string host;
  std::vector<ObservedWorker> workers = {};

  bool operator==(const WorkerReport&) const = default;
};

struct ObservedNode {
  NodeId id;
  std::string name;
  std::string address;
  std::string role;
  int local_world_size = 0;
  rdzv::NodePhase phase = rdzv::NodePhase::kJoined;
  int rank = -1;            // in the current round; -1: not a member
  bool is_suspect = false;  // its session is closed
  bool hosts_coordinator = false;
  Duration silence{};  // since its last message, when the coordinator last sent it
  std::optional<WorkerReport> report;
};

// A round of the job. Times are on the coordinator's clock.
struct ObservedRound {
  std::uint64_t round = 0;  // from 1; see shown_round()
  int nodes = 0;
  int world_size = 0;
  int restarts = 0;                         // charged to the budget before this round
  std::optional<Instant> formed;            // absent: by an earlier coordinator
  std::optional<Instant> ended;             // when the coordinator decided that; absent: it runs
  std::optional<Instant> first_step;        // the first report of a step (elastic/worker.h)
  std::optional<Instant> failed;            // the earliest evidence of a failed worker
  std::optional<Instant> stopped;           // the last report that a node's workers have ended
  std::optional<rdzv::RestartCause> cause;  // absent: it runs, or the job ended with it
  std::string reason;
  std::string node;  // of the worker that failed first, as far as it is known
  int rank = -1;     // of that worker
  int exit_code = 0;
  std::string rule;  // of the failure policy, that decided what followed; "": none

  bool operator==(const ObservedRound&) const = default;
};

// A rank that makes no progress while others advance (docs/hangs.md).
struct ObservedStraggler {
  int rank = 0;
  std::string node;
  std::int64_t step = -1;  // that it has reported last
  Duration idle{};         // since then

  bool operator==(const ObservedStraggler&) const = default;
};

// No rank has made progress for the limit, and none has since (docs/hangs.md).
struct ObservedHang {
  Duration idle{};         // since the last progress of any rank
  std::int64_t step = -1;  // the newest that a rank has reported
  int rank = -1;           // the suspected one; -1: unknown, or the stacks are being collected
  std::string place;       // of that rank: "in read_bytes (hang.py:26)"; "": unknown

  bool operator==(const ObservedHang&) const = default;
};

// Ranks wait in a collective operation, and nothing in the job makes progress (docs/hangs.md).
struct ObservedStall {
  Duration idle{};    // since the last progress
  int rank = -1;      // for which they wait; -1: none, or several
  std::string text;   // "rank 3 has not entered all_reduce #4 of the default group"
  std::string place;  // of that rank; "": unknown

  bool operator==(const ObservedStall&) const = default;
};

// How far the ranks that report steps are (docs/scripts.md).
struct ObservedProgress {
  std::int64_t step = -1;     // the newest of any rank
  std::int64_t slowest = -1;  // of the slowest rank
  int ranks = 0;              // that report
  Duration step_time{};       // recently; zero: not known yet

  bool operator==(const ObservedProgress&) const = default;
};

// The memory for snapshots, in bytes (docs/snapshots.md).
struct ObservedMemory {
  std::uint64_t own = 0;     // of all nodes, for the snapshots of their ranks
  std::uint64_t copies = 0;  // of all nodes, for the snapshots of other nodes
  NodeId node;               // the one whose limit leaves the least
  std::uint64_t needed = 0;  // of that node, for two of each
  std::uint64_t limit = 0;   // what it may use for them; 0: unknown

  bool operator==(const ObservedMemory&) const = default;
};

// The newest snapshot that every rank of the round has (docs/snapshots.md).
struct ObservedSave {
  std::int64_t step = -1;
  Duration age{};
  std::int64_t copied = -1;  // the newest step of which every node has a copy on another; -1: none
  std::optional<ObservedMemory> memory = {};  // nullopt: unknown

  bool operator==(const ObservedSave&) const = default;
};

struct ObservedJob {
  std::string id;
  std::uint64_t term = 1;
  std::uint64_t coordinator = 0;  // its incarnation: a change means that it was restarted
  std::optional<CoordinatorInfo> incumbent;  // nullopt: an older version
  Instant now;                               // when the coordinator described the job, on its clock
  std::int64_t wall_time = 0;                // the same moment: nanoseconds since 1970
  RendezvousPhase phase = RendezvousPhase::kForming;
  std::string description;  // one sentence
  JobSettings settings;
  RoundRecord record;
  int waiting_nodes = 0;
  int spare_nodes = 0;
  std::optional<Instant> began;  // when the first round was formed
  // In which a round ran, of the time since then; of a job that reports steps, from the first step
  // of each round, and without the time in which it hung.
  Duration running{};
  std::vector<ObservedRound> rounds;             // the latest, oldest first
  std::vector<ObservedStraggler> stragglers;     // at most one of each node, and 64
  std::optional<ObservedHang> hang;              // nullopt: none, or an older version
  std::optional<ObservedStall> stall;            // nullopt: none, or an older version
  std::vector<ObservedFinding> findings = {};    // by host, the newest of one first; as `excluded`
  std::vector<ObservedExclusion> excluded = {};  // by host; empty as well: an older version
  std::optional<std::string> mismatch = {};  // one sentence: ranks called operations of other sizes
  std::optional<ObservedProgress> progress;  // nullopt: no rank reports steps
  std::optional<ObservedSave> saved = {};    // nullopt: none is complete on every rank
  std::optional<JobResult> result;
  std::vector<ObservedNode> nodes;  // by id
  std::string stacks;               // one screen, when the reply to ObserverOptions::stacks is here
  std::string drain;             // one sentence, when the reply to ObserverOptions::drain is here
  bool is_drain_agreed = false;  // every rank stops at one step, or the node leaves at one
  // One sentence, when the reply to ObserverOptions::host_request is here.
  std::string host_answer = {};
  bool is_host_done = false;
};

struct ObserverOptions {
  std::string endpoint_host;
  std::uint16_t endpoint_port = 29400;
  // Instead of the endpoint: RendezvousOptions::observer_socket of a job with one node on this
  // host.
  std::string socket_path = {};
  std::string run_id = {};  // "": the only job of the coordinator
  // The token of the job, or of its observers. Without a run id: of all jobs.
  TokenOptions token = {};
  bool workers = true;  // request the state of each worker
  bool stacks = false;  // request the stacks of all workers, once
  // Request, once, that all ranks stop at one step within this time (docs/preemption.md). Changes
  // the job, and needs its token.
  std::optional<Duration> drain = {};
  std::string drain_reason = {};  // for messages
  // With `drain`: only the node of this name, or the nodes of this host, leave at a step; the
  // others continue (docs/in-place.md).
  std::string drain_node = {};
  // Once: exclude `host` from the job, or readmit it. Changes the job, and needs its token.
  std::string host_request = {};  // "exclude", "readmit"; "": none
  std::string host = {};          // its name or address, or the name of one of its nodes
  std::string host_reason = {};   // for messages
  Duration connect_timeout = std::chrono::seconds(5);
};

class ELASTIC_EXPORT Observer {
 public:
  // Begins to connect.
  static Result<std::unique_ptr<Observer>> start(ObserverOptions options);
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  ~Observer();

  // The newest snapshot that no earlier call has returned. Errors: kDeadlineExceeded; kUnavailable
  // (the endpoint does not answer, or the session ended); kPeerViolation (not a coordinator);
  // kFailedPrecondition (the coordinator refused: the message lists its jobs); kCancelled if
  // `interrupted` returned true. All but the first and the last are final.
  Result<std::shared_ptr<const ObservedJob>> next(Instant deadline,
                                                  const std::function<bool()>& interrupted = {});
  // A call of next() in another thread checks its `interrupted` now.
  void wake();

 private:
  class Impl;
  explicit Observer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
