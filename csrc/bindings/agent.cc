// elastic._C.Agent, its options, events and result.

#include <pybind11/stl.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "bindings/options.h"
#include "bindings/owner.h"
#include "elastic/agent.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

struct PyAgent {
  Owner<Agent> owner;
  bool finished = false;  // kFinished was delivered, so result() may be called

  explicit PyAgent(std::unique_ptr<Agent> agent)
      : owner(std::move(agent), {StatusCode::kFailedPrecondition, "the agent is closed"}) {}
  // Returns use(agent) without the interpreter's lock.
  template <typename Use>
  auto call(Use&& use) const {
    check();
    return owner.call(std::forward<Use>(use));
  }
  void check() const {
    if (!owner.call([](const Agent& agent) { return agent.is_in_child(); })) return;
    raise_status({StatusCode::kFailedPrecondition,
                  "the agent belongs to the parent process; start another one in this process"});
  }
};

std::optional<AgentEvent> next_event(PyAgent& self, std::optional<Duration> timeout) {
  self.check();
  std::optional<AgentEvent> event = self.owner.next_event(timeout);
  if (event && event->kind == AgentEvent::Kind::kFinished) self.finished = true;
  return event;
}

AgentResult result(const PyAgent& self) {
  self.check();
  if (!self.finished) {
    raise_status({StatusCode::kFailedPrecondition,
                  "the agent has not finished: wait for the event FINISHED"});
  }
  return self.call([](const Agent& agent) { return agent.result(); });
}

void advise(const PyAgent& self, const RoundInfo& round, int local_rank,
            std::optional<FailureAction> action, std::optional<bool> counts, std::string source,
            std::string reason) {
  std::optional<FailureAdvice> advice;
  if (action) advice = {*action, counts, std::move(source), std::move(reason)};
  self.call([&](Agent& agent) { agent.advise(round.round, local_rank, advice); });
}

void bind_constants(py::module_& module) {
  module.attr("REPEATED_STOP_GRACE") = kRepeatedStopGrace;
  module.attr("EXIT_USAGE") = kExitUsage;
  module.attr("EXIT_INTERNAL") = kExitInternal;
  module.attr("EXIT_SUPERVISION_LOST") = kExitSupervisionLost;
  module.attr("EXIT_CANNOT_START") = kExitCannotStart;
  module.attr("EXIT_CANNOT_SERVE") = kExitCannotServe;
  module.attr("EXIT_CANNOT_LOG") = kExitCannotLog;
  module.attr("EXIT_JOIN_TIMED_OUT") = kExitJoinTimedOut;
  module.attr("EXIT_REJECTED") = kExitRejected;
  module.attr("EXIT_COORDINATOR_LOST") = kExitCoordinatorLost;
  module.attr("EXIT_NODE_LOST") = kExitNodeLost;
  module.attr("EXIT_BAD_HOST") = kExitBadHost;
  module.attr("EXIT_STOPPED_AT_STEP") = kExitStoppedAtStep;
  module.attr("EXIT_PARTIAL") = kExitPartial;
  module.attr("EXIT_JOB_CLOSED") = kExitJobClosed;
  py::enum_<AgentState>(module, "AgentState", "The states of an agent, as torch names them.")
      .value("INIT", AgentState::kInit)
      .value("HEALTHY", AgentState::kHealthy)
      .value("UNHEALTHY", AgentState::kUnhealthy)
      .value("STOPPED", AgentState::kStopped)
      .value("SUCCEEDED", AgentState::kSucceeded)
      .value("FAILED", AgentState::kFailed)
      .value("UNKNOWN", AgentState::kUnknown);
  py::enum_<StreamTarget>(module, "StreamTarget", "The destination of a worker's stdout or stderr.")
      .value("INHERIT", StreamTarget::kInherit)
      .value("FILE", StreamTarget::kFile)
      .value("TEE", StreamTarget::kTee)
      .value("DISCARD", StreamTarget::kDiscard);
}

void bind_options(py::module_& module) {
  const WorkerTemplate plain;
  py::class_<WorkerTemplate>(module, "WorkerTemplate", "The program of one local rank.")
      .def(py::init([](const TextList& argv, const TextDict& env, StreamTarget stdout_target,
                       StreamTarget stderr_target, std::vector<std::uint32_t> cpus) {
             return WorkerTemplate{.argv = to_arguments(argv),
                                   .env = to_environment(env),
                                   .stdout_target = stdout_target,
                                   .stderr_target = stderr_target,
                                   .cpus = std::move(cpus)};
           }),
           py::arg("argv"), py::kw_only(), py::arg("env") = py::dict(),
           py::arg("stdout_target") = plain.stdout_target,
           py::arg("stderr_target") = plain.stderr_target, py::arg("cpus") = py::list(),
           "`env` is for this worker only and overrides all other variables. "
           "`cpus`: on which it may run; empty: this process's.")
      .def_property_readonly("argv",
                             [](const WorkerTemplate& self) {
                               std::vector<py::str> words;
                               for (const std::string& word : self.argv) {
                                 words.push_back(from_os(word));
                               }
                               return words;
                             })
      .def_readonly("stdout_target", &WorkerTemplate::stdout_target)
      .def_readonly("stderr_target", &WorkerTemplate::stderr_target)
      .def_readonly("cpus", &WorkerTemplate::cpus);
  show_fields<WorkerTemplate>({"argv", "stdout_target", "stderr_target"});

  py::enum_<HangAction>(module, "HangAction", "What happens to a job that hangs.")
      .value("REPORT", HangAction::kReport)
      .value("RESTART", HangAction::kRestart)
      .value("FAIL", HangAction::kFail);
  py::enum_<FailureAction>(module, "FailureAction", "What follows a failure.")
      .value("STOP", FailureAction::kStop)
      .value("RESTART", FailureAction::kRestart)
      .value("EXCLUDE", FailureAction::kExclude);
  using Rendezvous = RendezvousOptions;
  using Guardian = WorkerGroupOptions;
  py::class_<AgentOptions> options(module, "AgentOptions",
                                   "The workers of an agent and its settings.");
  def_init<AgentOptions>(
      &options, std::identity(),
      "One WorkerTemplate for each local rank; workers inherit no variables except `env`. "
      "`max_restarts` is the budget of the whole job. Without `rendezvous` the job has one node.",
      required("workers", &AgentOptions::workers), py::kw_only(),
      Option<AgentOptions, TextDict, py::arg>{
          py::arg("env"), [](auto* made, const TextDict& env) { made->env = to_environment(env); }},
      option("run_id", &AgentOptions::run_id), option("role", &AgentOptions::role),
      os_option("cwd", &AgentOptions::cwd),
      // Before the job's settings, which are a part of it.
      option_by<AgentOptions, std::optional<Rendezvous>>(
          "rendezvous", py::none(),
          [](auto* made, std::optional<Rendezvous> rendezvous) {
            if (rendezvous) made->rendezvous = *std::move(rendezvous);
          }),
      option("max_restarts", &AgentOptions::rendezvous, &Rendezvous::settings,
             &JobSettings::max_restarts),
      option("restart_backoff", &AgentOptions::rendezvous, &Rendezvous::settings,
             &JobSettings::restart_backoff),
      option("stop_grace", &AgentOptions::stop_grace),
      option("failure_grace", &AgentOptions::failure_grace),
      option("stop_scope", &AgentOptions::stop_scope),
      option("exit_barrier_timeout", &AgentOptions::exit_barrier_timeout),
      option("master_port", &AgentOptions::master_port),
      option("worker_ports", &AgentOptions::worker_ports),
      option("share_store", &AgentOptions::share_store),
      option("capture_stderr", &AgentOptions::capture_stderr),
      option("hang_timeout", &AgentOptions::hang_timeout),
      option("hang_action", &AgentOptions::hang_action),
      option("straggler_timeout", &AgentOptions::straggler_timeout),
      option("stacks_on_failure", &AgentOptions::stacks_on_failure),
      option("snapshot_buddies", &AgentOptions::snapshot_buddies),
      option("snapshot_rate", &AgentOptions::snapshot_rate),
      option("snapshot_memory", &AgentOptions::snapshot_memory),
      option("leftover_grace", &AgentOptions::guardian, &Guardian::leftover_grace),
      option("reach_timeout", &AgentOptions::reach_timeout),
      os_option("log_dir", &AgentOptions::log_dir),
      option("log_bytes_max", &AgentOptions::log_bytes_max),
      option("log_files_max", &AgentOptions::log_files_max),
      option("line_prefix", &AgentOptions::line_prefix),
      option("merge_lines", &AgentOptions::merge_lines),
      option("stdout_filters", &AgentOptions::stdout_filters),
      option("stderr_filters", &AgentOptions::stderr_filters),
      os_option("guardian_path", &AgentOptions::guardian, &Guardian::guardian_path),
      option("become_subreaper", &AgentOptions::guardian, &Guardian::become_subreaper),
      option("start_timeout", &AgentOptions::guardian, &Guardian::start_timeout),
      option_by<AgentOptions, TextList>(
          "warm_template", py::list(),
          [](auto* made, const TextList& command) { made->warm_template = to_arguments(command); }),
      option("no_restart_codes", &AgentOptions::no_restart_codes),
      option("bad_node_codes", &AgentOptions::bad_node_codes),
      option_by<AgentOptions, std::vector<std::pair<std::string, TextList>>>(
          "node_checks", py::list(),
          [](auto* made, const std::vector<std::pair<std::string, TextList>>& checks) {
            for (const auto& [name, command] : checks) {
              made->node_checks.push_back({name, to_arguments(command)});
            }
          }),
      option("node_check_timeout", &AgentOptions::node_check_timeout),
      option("network_check", &AgentOptions::network_check),
      option("asks_for_advice", &AgentOptions::asks_for_advice),
      option("inplace_grace", &AgentOptions::inplace_grace),
      option("inplace_prepare", &AgentOptions::inplace_prepare));
  options.def_readonly("run_id", &AgentOptions::run_id)
      .def_readonly("role", &AgentOptions::role)
      .def_readonly("workers", &AgentOptions::workers)
      .def_readonly("rendezvous", &AgentOptions::rendezvous);
  show_fields<AgentOptions>({"run_id", "role", "workers", "rendezvous"});
  module.def(
      "describe_failure_rules",
      [](const AgentOptions& settings) {
        FailureRulesText text = describe_failure_rules(settings);
        return std::tuple(std::move(text.of_launcher), std::move(text.of_policy),
                          std::move(text.defaults));
      },
      py::arg("options"),
      "What follows a failure, a sentence for each rule: the launcher's, the policy's, defaults.");
}

void bind_round(py::module_& module) {
  py::class_<WorkerAssignment>(module, "WorkerAssignment", "The ranks of one worker in a round.")
      .def_readonly("local_rank", &WorkerAssignment::local_rank)
      .def_readonly("rank", &WorkerAssignment::rank)
      .def_readonly("role_rank", &WorkerAssignment::role_rank)
      .def_readonly("world_size", &WorkerAssignment::world_size)
      .def_readonly("role_world_size", &WorkerAssignment::role_world_size);
  show_fields<WorkerAssignment>(
      {"local_rank", "rank", "world_size", "role_rank", "role_world_size"});
  py::class_<RoundInfo, std::shared_ptr<RoundInfo>>(module, "RoundInfo",
                                                    "The values that all workers of a round share.")
      .def_property_readonly(
          "round", [](const RoundInfo& self) { return shown_round(self.round); },
          "from 0, as ELASTIC_ROUND")
      .def_readonly("generation", &RoundInfo::generation)
      .def_readonly("restart_count", &RoundInfo::restart_count)
      .def_readonly("membership_changes", &RoundInfo::membership_changes)
      .def_readonly("group_rank", &RoundInfo::group_rank)
      .def_readonly("group_world_size", &RoundInfo::group_world_size)
      .def_readonly("master_addr", &RoundInfo::master_addr)
      .def_readonly("master_port", &RoundInfo::master_port)
      .def_readonly("workers", &RoundInfo::workers, "this node's")
      .def_property_readonly(
          "resumed_step",
          [](const RoundInfo& self) {
            const std::int64_t step = self.resume.step;
            return step < 0 ? std::nullopt : std::optional(step);
          },
          "of the snapshots with which all ranks continue; None: with none");
  show_fields<RoundInfo>(
      {"round", "restart_count", "group_rank", "group_world_size", "master_addr", "master_port"});
}

void bind_failures(py::module_& module) {
  py::class_<WorkerFailure>(module, "WorkerFailure", "A worker that failed and was not stopped.")
      .def_readonly("local_rank", &WorkerFailure::local_rank)
      .def_readonly("rank", &WorkerFailure::rank)
      .def_readonly("pid", &WorkerFailure::pid)
      .def_readonly("exit", &WorkerFailure::exit)
      .def_readonly("failed_at", &WorkerFailure::at,
                    "the earliest evidence, in the time of time.monotonic()")
      .def_readonly("exit_code", &WorkerFailure::exit_code, "as the launcher reports it")
      .def_readonly("message", &WorkerFailure::message, "how it ended")
      .def_property_readonly(
          "evidence",
          [](const WorkerFailure& self) { return self.evidence.value_or(FailureEvidence{}); })
      .def_property_readonly("error_file", os_getter(&WorkerFailure::error_file))
      .def_property_readonly("stdout_path", os_getter(&WorkerFailure::stdout_path))
      .def_property_readonly("stderr_path", os_getter(&WorkerFailure::stderr_path))
      .def_readonly("stderr_tail", &WorkerFailure::stderr_tail,
                    "the last lines of a stderr that was inherited and captured");
  show_fields<WorkerFailure>({"local_rank", "rank", "pid", "exit"});
}

void bind_events(py::module_& module) {
  py::class_<AgentRoundEnd>(module, "AgentRoundEnd", "How a round ended on this node.")
      .def_readonly("cause", &AgentRoundEnd::cause,
                    "worker_failed, node_lost, node_left, nodes_joined, rejoin, evicted, or empty")
      .def_readonly(
          "ordered", &AgentRoundEnd::ordered,
          "when the order to restart was received, in the time of time.monotonic(); or None")
      .def_readonly("stopped", &AgentRoundEnd::stopped,
                    "when the last process of the workers had ended; or None")
      .def_readonly("kept", &AgentRoundEnd::kept,
                    "Whether the workers take part in the next round.")
      .def_readonly("failures", &AgentRoundEnd::failures,
                    "of this node's workers, earliest first; without paths");
  show_fields<AgentRoundEnd>({"cause", "ordered", "stopped"});
  py::class_<CoordinatorInfo, std::shared_ptr<CoordinatorInfo>>(
      module, "CoordinatorInfo", "Where the coordinator of a job runs.")
      .def_readonly("address", &CoordinatorInfo::address, "host:port, or empty")
      .def_readonly("lineage", &CoordinatorInfo::lineage,
                    "within which terms are compared; empty: the job has one voter")
      .def_readonly("term", &CoordinatorInfo::term)
      .def_readonly("voters", &CoordinatorInfo::voters, "their voter ports");
  show_fields<CoordinatorInfo>({"address", "lineage", "term", "voters"});
  py::class_<CoordinatorMove>(module, "CoordinatorMove", "The coordinator's change of process.")
      .def_readonly("origin", &CoordinatorMove::from, "the former coordinator's address")
      .def_readonly("cause", &CoordinatorMove::cause, "connection_closed, silent or handed_over")
      .def_readonly("seconds", &CoordinatorMove::took);
  show_fields<CoordinatorMove>({"origin", "cause", "seconds"});
  py::class_<AgentFirstStep>(module, "AgentFirstStep",
                             "The first step that a worker of this node reported in a round.")
      .def_readonly("step", &AgentFirstStep::step, "the number of complete steps")
      .def_readonly(
          "opened", &AgentFirstStep::opened,
          "when the first worker had opened its channel, in the time of time.monotonic(); or None")
      .def_readonly(
          "store_used", &AgentFirstStep::store_used,
          "when the first client had connected to the round's store, if that is here; or None")
      .def_readonly("store_filled", &AgentFirstStep::store_filled,
                    "when the last key was added to the round's store, if that is here; or None")
      .def_readonly("lost_steps", &AgentFirstStep::lost_steps,
                    "the steps that are made again, this one among them; -1: unknown");
  show_fields<AgentFirstStep>({"step", "opened", "store_used", "store_filled", "lost_steps"});
  py::class_<AgentCheck>(module, "AgentCheck", "What a check of this node has found.")
      .def_readonly("host", &AgentCheck::host)
      .def_readonly("name", &AgentCheck::name)
      .def_readonly("verdict", &AgentCheck::verdict, "good, bad or unknown")
      .def_readonly("reason", &AgentCheck::reason, "one line");
  show_fields<AgentCheck>({"host", "name", "verdict", "reason"});
  py::class_<AgentEvent> event(module, "AgentEvent", "An event of the agent or of its workers.");
  py::enum_<AgentEvent::Kind>(event, "Kind")
      .value("PROGRESS", AgentEvent::Kind::kProgress)
      .value("COORDINATOR_LOG", AgentEvent::Kind::kCoordinatorLog)
      .value("NOTICE", AgentEvent::Kind::kNotice)
      .value("ROUND_STARTING", AgentEvent::Kind::kRoundStarting)
      .value("WORKER_STARTED", AgentEvent::Kind::kWorkerStarted)
      .value("WORKERS_RUNNING", AgentEvent::Kind::kWorkersRunning)
      .value("WORKER_EXITED", AgentEvent::Kind::kWorkerExited)
      .value("FIRST_STEP", AgentEvent::Kind::kFirstStep)
      .value("STOPPING", AgentEvent::Kind::kStopping)
      .value("RESTARTING", AgentEvent::Kind::kRestarting)
      .value("HANG", AgentEvent::Kind::kHang)
      .value("STRAGGLING", AgentEvent::Kind::kStraggling)
      .value("STALLED", AgentEvent::Kind::kStalled)
      .value("STALL_OVER", AgentEvent::Kind::kStallOver)
      .value("MISMATCH", AgentEvent::Kind::kMismatch)
      .value("DRAIN", AgentEvent::Kind::kDrain)
      .value("COORDINATOR_MOVED", AgentEvent::Kind::kCoordinatorMoved)
      .value("HOST_EXCLUDED", AgentEvent::Kind::kHostExcluded)
      .value("HOST_READMITTED", AgentEvent::Kind::kHostReadmitted)
      .value("NODE_CHECK", AgentEvent::Kind::kNodeCheck)
      .value("ADVICE_ASKED", AgentEvent::Kind::kAdviceAsked)
      .value("FINISHED", AgentEvent::Kind::kFinished);
  event.def_readonly("kind", &AgentEvent::kind)
      .def_readonly("at", &AgentEvent::at, "in the time of time.monotonic()")
      .def_readonly("state", &AgentEvent::state)
      .def_property_readonly(
          "round",
          [](const AgentEvent& self) { return std::const_pointer_cast<RoundInfo>(self.round); },
          "None before the first round")
      .def_readonly("local_rank", &AgentEvent::local_rank)
      .def_readonly("pid", &AgentEvent::pid)
      .def_readonly("exit", &AgentEvent::exit, "meaningful for WORKER_EXITED")
      .def_property_readonly("log_dir", os_getter(&AgentEvent::log_dir))
      .def_readonly("message", &AgentEvent::message)
      .def_readonly("deadline", &AgentEvent::deadline,
                    "of PROGRESS: the time of what the message ends with, as time.monotonic() "
                    "counts; or None")
      .def_readonly("ended", &AgentEvent::ended, "of RESTARTING; else None")
      .def_property_readonly(
          "coordinator",
          [](const AgentEvent& self) {
            return std::const_pointer_cast<CoordinatorInfo>(self.coordinator);
          },
          "of ROUND_STARTING and COORDINATOR_MOVED; None: the job has no coordinator")
      .def_readonly("moved", &AgentEvent::moved, "of COORDINATOR_MOVED; else None")
      .def_readonly("first_step", &AgentEvent::first_step, "of FIRST_STEP; else None")
      .def_readonly("check", &AgentEvent::check, "of NODE_CHECK; else None")
      .def_readonly("failure", &AgentEvent::failure, "of ADVICE_ASKED; else None")
      .def_readonly("hosts_coordinator", &AgentEvent::hosts_coordinator);
  show_fields<AgentEvent>({"kind", "state", "local_rank", "pid", "message"});

  py::class_<AgentResult>(module, "AgentResult", "The result of an agent's run.")
      .def_readonly("state", &AgentResult::state)
      .def_readonly("exit_code", &AgentResult::exit_code)
      .def_readonly("message", &AgentResult::message)
      .def_readonly("failures", &AgentResult::failures,
                    "in this node's last round, earliest first, without workers that were stopped")
      .def_readonly("is_cause", &AgentResult::is_cause,
                    "whether the worker that the job's result names is one of these failures")
      .def_readonly("job", &AgentResult::job,
                    "None if the agent ended before it received the job's result");
  show_fields<AgentResult>({"state", "exit_code", "message", "failures", "job"});
}

}  // namespace

void bind_agent(py::module_& module) {
  bind_constants(module);
  bind_options(module);
  bind_round(module);
  bind_failures(module);
  bind_events(module);
  py::class_<PyAgent>(module, "Agent",
                      "One node's agent: starts, supervises and restarts the workers.")
      .def(py::init([](AgentOptions options) {
             return PyAgent(unwrap(without_gil([&] { return Agent::start(std::move(options)); })));
           }),
           py::arg("options"))
      .def("next_event", &next_event, py::arg("timeout") = py::none(),
           "The next event; None after `timeout` seconds without one, or after FINISHED has been "
           "delivered. Signal handlers run during the call and may raise.")
      .def(
          "request_stop",
          [](const PyAgent& self, int signum) {
            self.call([&](Agent& agent) { agent.request_stop(signum); });
          },
          py::arg("signum"),
          "Stop the workers with this signal and finish with 128 + signum; a second call kills.")
      .def(
          "request_drain",
          [](const PyAgent& self, int signum, Duration limit) {
            self.call([&](Agent& agent) { agent.request_drain(signum, limit); });
          },
          py::arg("signum"), py::arg("limit"),
          "Stop all ranks of the job at one step, within `limit` seconds.")
      .def("advise", &advise, py::arg("round"), py::arg("local_rank"),
           py::arg("action") = py::none(), py::kw_only(), py::arg("counts") = py::none(),
           py::arg("source") = "", py::arg("reason") = "",
           "Answer ADVICE_ASKED about a worker of that round. `action` None: as without advice. "
           "`counts`: whether a restart is charged; None: as without advice.")
      .def(
          "forward",
          [](const PyAgent& self, int signum) {
            self.call([&](Agent& agent) { agent.forward(signum); });
          },
          py::arg("signum"), "Deliver a signal to the running workers without stopping them.")
      .def_property_readonly("result", &result,
                             "The result; available after FINISHED has been delivered.")
      .def(
          "close", [](PyAgent& self) { self.owner.close(); },
          "Kill all workers, and remove the temporary directory if there was no log_dir.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyAgent& self, const py::args&) { self.owner.close(); });
}

}  // namespace elastic::bindings
