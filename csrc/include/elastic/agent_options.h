#pragma once

// What an agent is to run, and how: plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/rendezvous_options.h"
#include "elastic/store_options.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// Where one worker's streams go.
enum class StreamTarget : std::uint8_t { kInherit, kFile, kTee, kDiscard };

// What one local rank runs. The agent adds the rank variables to `env`; its own entries win.
struct WorkerTemplate {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // "NAME=value", for this worker alone; wins over everything else
  StreamTarget stdout_target = StreamTarget::kInherit;
  StreamTarget stderr_target = StreamTarget::kInherit;
};

// first..last, both included; {0, 0}: any.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

struct AgentOptions {
  std::string run_id = "none";
  std::string role = "default";
  std::vector<WorkerTemplate> workers;  // one for each local rank
  std::vector<std::string> env;         // "NAME=value", what every worker inherits
  std::string cwd;                      // "": the caller's

  // The job's settings, its budget of restarts among them, and the way to the other nodes.
  // rendezvous.local_addr is also where the workers of this and the other nodes reach a store here:
  // a literal address is bound exactly. A job of one node takes 127.0.0.1 if it is "".
  RendezvousOptions rendezvous;

  // From TERM to KILL, on every path: a signal to the agent, a change of members, the end.
  Duration stop_grace = std::chrono::seconds(30);
  // The same when the round ends because a worker or a node failed: whoever waits in a collective
  // then can do nothing useful with the time. nullopt: as stop_grace.
  std::optional<Duration> failure_grace;
  // Who gets the signal that begins the grace; the kill at its end hits everything.
  SignalScope stop_scope = SignalScope::kGroup;
  // How long this node, when its workers have succeeded, waits for the others, which may still call
  // it back. Then it leaves with success. nullopt: as long as others work.
  std::optional<Duration> exit_barrier_timeout;

  // 0: a fresh port for every round. Otherwise this port in all rounds, emptied in between.
  std::uint16_t master_port = 0;
  // Where the fresh ports come from, for firewalls.
  PortRange worker_ports;
  // A stderr that is inherited is passed on by the agent, which keeps the last lines for the report
  // on a failure. A worker has a pseudo-terminal where the agent's stderr is a terminal, else a
  // pipe. False: the worker has the agent's own descriptor.
  bool capture_stderr = true;
  // False: rank 0's worker hosts the store itself, on a port that is held for it.
  bool share_store = true;
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

}  // namespace elastic
