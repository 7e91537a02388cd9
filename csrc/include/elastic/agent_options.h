#pragma once

// The options of an agent: its workers, their output, and how it joins the job. Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/rendezvous_options.h"
#include "elastic/store_server.h"
#include "elastic/time.h"
#include "elastic/worker_group.h"

namespace elastic {

// Destination of one output stream of a worker.
enum class StreamTarget : std::uint8_t { kInherit, kFile, kTee, kDiscard };

// The program of one local rank. The agent adds the rank variables to the environment.
struct WorkerTemplate {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // "NAME=value", for this worker only; overrides all other sources
  StreamTarget stdout_target = StreamTarget::kInherit;
  StreamTarget stderr_target = StreamTarget::kInherit;
  std::vector<std::uint32_t> cpus;  // see WorkerCommand::cpus
};

// What happens to a job that hangs: no rank has made progress (elastic/worker.h) for hang_timeout.
enum class HangAction : std::uint8_t {
  kReport,   // the stacks of all workers are reported on every node
  kRestart,  // and the suspected worker is killed, as a failure of it
  kFail,     // and the job fails, whatever is left of the restart budget
};

// A program that tests the host of a node.
struct NodeCheck {
  std::string name;  // in messages
  std::vector<std::string> argv;
};

// What one has found.
struct AgentCheck {
  std::string host;
  std::string name;
  std::string verdict;  // "good", "bad" or "unknown"
  std::string reason;   // one line
};

struct AgentOptions {
  std::string run_id = "none";
  std::string role = "default";
  std::vector<WorkerTemplate> workers;  // one for each local rank
  std::vector<std::string> env;         // "NAME=value", inherited by every worker
  std::string cwd;                      // "": the caller's

  // The job's settings (including the restart budget) and how this node reaches the other nodes.
  // Workers of all nodes reach this node's store at rendezvous.local_addr; a literal address is
  // bound exactly. If it is "", a job of one node uses 127.0.0.1.
  RendezvousOptions rendezvous;

  // Grace period from SIGTERM to SIGKILL whenever workers are stopped: a signal to the agent, a
  // membership change, the end of the job.
  Duration stop_grace = std::chrono::seconds(30);
  // The grace period after a worker or a node failed. It may be shorter, because workers that are
  // blocked in a collective cannot use the time. nullopt: stop_grace.
  std::optional<Duration> failure_grace;
  // How long workers that can continue in another round (elastic/worker.h) may take to leave one
  // that is over. If all workers of this node do so, they are kept: they are given the next round
  // instead of being started in it. Otherwise they are stopped. Part of a node's time to stop its
  // workers. nullopt: the end of a round stops all workers.
  std::optional<Duration> inplace_grace;
  // The workers are started before this node joins, without a rank, and wait for their first round
  // (ELASTIC_AWAITS_ROUND=1, elastic/worker.h). The node joins when all of them wait, so that no
  // kept worker of another node waits for their imports. After this time, or if one ends, they are
  // stopped, and start with the round. nullopt: they always do. Needs inplace_grace, and has no
  // effect in a job of one node.
  std::optional<Duration> inplace_prepare;
  // Receivers of the signal that begins the grace period; SIGKILL at its end goes to all processes.
  SignalScope stop_scope = SignalScope::kHandler;
  // Exit barrier: how long this node waits for the result of the job when its own workers have
  // succeeded. A restart during the wait brings it back into the next round. After the timeout it
  // leaves with success. nullopt: until the job ends.
  std::optional<Duration> exit_barrier_timeout;

  // The time without progress of any rank after which the job hangs. Zero: learned from the pauses
  // between steps, at least a minute, and only reported. Applies once a worker has reported a step.
  // The shortest one of all nodes counts.
  Duration hang_timeout{};
  HangAction hang_action = HangAction::kReport;
  // A partial exit: once a worker of the job has exited with 0, the other ones have this time to
  // end, too. Then their stacks are reported on every node, they are stopped, and the job fails
  // with kExitPartial, whatever is left of the restart budget. Zero: no limit. The node of the
  // worker that exited needs the option; the shortest time of such nodes counts. A coordinator that
  // follows a lost one begins the time anew.
  Duration straggler_timeout{};
  // True: before workers are stopped because a worker failed or a node was lost, the stacks of this
  // node's workers are written to stacks.txt in the round's log directory, or reported (kNotice) if
  // log_dir is "". Delays the stop, by two seconds at most. The stacks of a hang are always kept.
  bool stacks_on_failure = false;

  // Exit codes of a worker, as in a shell, after which the job ends, whatever is left of the
  // restart budget: a restart would not help.
  std::vector<int> no_restart_codes;
  // Exit codes of a worker that mean that its node is bad (a script has tested its GPUs): the node
  // stops its other workers and leaves the job with that code. The other nodes continue as after a
  // loss: with a spare or without it, and charged only if fewer than min_nodes are left.
  std::vector<int> bad_node_codes;

  // After each failure of a worker of this node the event kAdviceAsked asks what is to follow, and
  // the round does not end here before Agent::advise() has answered.
  bool asks_for_advice = false;

  // Run before this node joins and after a failure of one of its workers (docs/policy.md). A
  // bad node does not join, or leaves the job, with kExitBadHost.
  std::vector<NodeCheck> node_checks;
  // After it a check is killed, and what it would have found is unknown.
  Duration node_check_timeout = std::chrono::seconds(60);

  // Before the first round this node and the others that have the option measure the network
  // between them, in pairs; the round waits for that, for 10 s at most (docs/policy.md). A bad
  // node is refused with kExitBadHost, where min_nodes others are there.
  bool network_check = false;

  // Port of the store. 0: a new port for every round. Otherwise this port in all rounds; the store
  // is emptied between two rounds.
  std::uint16_t master_port = 0;
  // The range of those new ports, for firewalls.
  PortRange worker_ports;
  // Copies of snapshots on other nodes of the job (docs/snapshots.md): how many nodes keep those of
  // this one (0: none), how fast they are sent, in bytes a second (0: without a limit), and the
  // memory for those of other nodes here, in bytes (0: what the host has).
  int snapshot_buddies = 1;
  std::uint64_t snapshot_rate = std::uint64_t{128} << 20;
  std::uint64_t snapshot_memory = 0;
  // True: the agent forwards an inherited stderr and keeps the last lines for the failure report.
  // The worker's stderr is a pseudo-terminal if the agent's is a terminal, otherwise a pipe.
  // False: the worker inherits the agent's own descriptor.
  bool capture_stderr = true;
  // False: the worker of rank 0 hosts the store itself, on a port that the agent reserves for it.
  bool share_store = true;
  // The time in which this node must reach the store of a round, on another node, at MASTER_ADDR
  // and MASTER_PORT: tested while the workers start. After it a worker of this node counts as
  // failed, with both nodes named, instead of waiting for the timeout of its process group. Zero:
  // not tested.
  Duration reach_timeout = std::chrono::seconds(30);
  StoreLimits store_limits;

  // Logs and error files are written to <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/,
  // where n counts this agent's rounds from 0. "": a private temporary directory below $TMPDIR,
  // which exists until ~Agent() removes it.
  std::string log_dir;
  // Limit of the size of each log file, in bytes; a line may exceed it. 0: none. A full stdout.log
  // becomes stdout.log.1, that becomes stdout.log.2, and so on. With a limit the agent writes the
  // files, and a worker waits while its pipe to the agent is full.
  std::uint64_t log_bytes_max = 0;
  int log_files_max = 5;  // of each stream, at least 1; the oldest is removed
  // Prefix of each line of a stream that is also copied to the console (kTee). ${role_name},
  // ${rank}, ${local_rank}, ${hostname}, ${round} and ${time} are replaced.
  std::string line_prefix = "[${role_name}${local_rank}]:";
  // True: an identical line of several workers is copied to the console once, and its prefix has
  // their ranks as a range ("0-7"). A line waits up to 0.2 s for the other workers.
  bool merge_lines = false;
  // Lines of stdout or stderr that contain one of the words are also written, with their prefix, to
  // filtered_stdout.log or filtered_stderr.log of the round (of kFile and kTee streams).
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;

  // The command of the template process that forks the workers (docs/warm-workers.md). It gets the
  // variables `env` and OMP_NUM_THREADS=1. Empty: workers are executed.
  std::vector<std::string> warm_template;

  WorkerGroupOptions guardian;  // its warm_template is replaced
};

// What follows a failure, one sentence for each rule, in the order in which they are asked: those
// of this node's launcher, of the failure policy, and those that decide where no other rule
// matches.
struct FailureRulesText {
  std::vector<std::string> of_launcher;
  std::vector<std::string> of_policy;
  std::vector<std::string> defaults;
};
ELASTIC_EXPORT FailureRulesText describe_failure_rules(const AgentOptions& options);

}  // namespace elastic
