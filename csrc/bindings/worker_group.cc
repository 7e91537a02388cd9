// elastic._C.WorkerGroup and its events.

#include "elastic/worker_group.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "bindings/options.h"
#include "bindings/owner.h"
#include "core/base/describe.h"
#include "elastic/agent.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

using PyWorkerGroup = Owner<WorkerGroup>;

std::string describe_worker(int rank, const std::string& how, int local_rank, int pid) {
  return local_rank < 0 ? core::describe_worker(rank, how)
                        : core::describe_local_worker(rank, local_rank, pid, how);
}

std::string describe_exit(int exitcode) {
  WorkerExit exit;
  exit.kind = exitcode < 0 ? ExitKind::kSignaled : ExitKind::kExited;
  exit.code = exitcode;
  exit.signal = -exitcode;
  return exit.describe();
}

void bind_words(py::module_& module) {
  module.def("describe_worker", &describe_worker, py::arg("rank"), py::arg("how"), py::kw_only(),
             py::arg("local_rank") = -1, py::arg("pid") = -1,
             "Who a worker is, and how it ended, as every node says it.");
  module.def("describe_exit", &describe_exit, py::arg("exitcode"),
             "How a process ended; a negative number is a signal.");
  module.def("describe_ranks", &core::describe_ranks, py::arg("ranks"),
             "Ranks in ascending order, in a few words.");
  module.def(
      "describe_restarts_used",
      [](int used, int allowed) {
        return core::RestartBudget{used, allowed}.describe_used();
      },
      py::arg("used"), py::arg("allowed"));
  module.def(
      "describe_restarts_left",
      [](int used, int allowed) {
        return core::RestartBudget{used, allowed}.describe_left();
      },
      py::arg("used"), py::arg("allowed"));
}

void bind_exit(py::module_& module) {
  py::enum_<ExitKind>(module, "ExitKind", "How a worker ended.")
      .value("NOT_STARTED", ExitKind::kNotStarted)
      .value("EXITED", ExitKind::kExited)
      .value("SIGNALED", ExitKind::kSignaled)
      .value("UNKNOWN", ExitKind::kUnknown);
  py::class_<WorkerExit>(module, "WorkerExit", "How and when a worker ended.")
      .def_readonly("kind", &WorkerExit::kind)
      .def_readonly("code", &WorkerExit::code)
      .def_readonly("signal", &WorkerExit::signal)
      .def_readonly("core_dumped", &WorkerExit::core_dumped)
      .def_readonly("stopped_by_us", &WorkerExit::stopped_by_us)
      .def_readonly("stop_step", &WorkerExit::stop_step,
                    "the agreed step at which the worker was told to stop; -1: it was not")
      .def_readonly("last_step", &WorkerExit::last_step, "that the worker had reported; -1: none")
      .def_readonly("killed_by_us", &WorkerExit::killed_by_us,
                    "it was still running when the stop sent SIGKILL")
      .def_readonly("stage", &WorkerExit::stage)
      .def_readonly("error", &WorkerExit::error, "errno, for NOT_STARTED")
      .def_property_readonly("path", os_getter(&WorkerExit::path))
      .def_readonly("start_timeout", &WorkerExit::start_timeout,
                    "the start timeout in seconds if it was exceeded in `stage`")
      .def_readonly("at", &WorkerExit::at,
                    "when the kernel reported it, in the time of time.monotonic()")
      .def_property_readonly("succeeded", &WorkerExit::succeeded)
      .def_property_readonly("shell_code", &WorkerExit::shell_code,
                             "as a shell reports it: the code, or 128+n for a signal")
      .def_property_readonly(
          "launcher_exit_code", [](const WorkerExit& self) { return exit_code_of(self); },
          "with which a launcher ends because of this failure")
      .def("describe", &WorkerExit::describe)
      .def("__repr__",
           [](const WorkerExit& self) { return "<WorkerExit: " + self.describe() + ">"; });
  py::enum_<SignalScope>(module, "SignalScope",
                         "Which processes receive the signal that begins a stop.")
      .value("GROUP", SignalScope::kGroup)
      .value("LEADER", SignalScope::kLeader)
      .value("HANDLER", SignalScope::kHandler);
}

void bind_event(py::module_& module) {
  py::class_<WorkerEvent> event(module, "WorkerEvent", "An event of a worker or of the group.");
  py::enum_<WorkerEvent::Kind>(event, "Kind")
      .value("STARTED", WorkerEvent::Kind::kStarted)
      .value("START_DELAYED", WorkerEvent::Kind::kStartDelayed)
      .value("EXITED", WorkerEvent::Kind::kExited)
      .value("GROUP_ENDED", WorkerEvent::Kind::kGroupEnded)
      .value("STUCK", WorkerEvent::Kind::kStuck)
      .value("GUARDIAN_LOST", WorkerEvent::Kind::kGuardianLost)
      .value("NOTICE", WorkerEvent::Kind::kNotice);
  event.def_readonly("kind", &WorkerEvent::kind)
      .def_readonly("generation", &WorkerEvent::generation)
      .def_readonly("local_rank", &WorkerEvent::local_rank)
      .def_readonly("pid", &WorkerEvent::pid)
      .def_readonly("exit", &WorkerEvent::exit)
      .def_readonly("kill_sent", &WorkerEvent::kill_sent, "for STUCK: whether SIGKILL was sent")
      .def_readonly("message", &WorkerEvent::message)
      .def_readonly("at", &WorkerEvent::at);
  show_fields<WorkerEvent>({"kind", "local_rank", "pid", "message"});
}

void bind_command(py::module_& module) {
  py::class_<WorkerCommand>(module, "WorkerCommand",
                            "One worker's program, directory, environment and output files.")
      .def(py::init([](const TextList& argv, const TextDict& env, const py::str& cwd,
                       const py::str& stdout_path, const py::str& stderr_path,
                       std::vector<std::uint32_t> cpus) {
             return WorkerCommand{.argv = to_arguments(argv),
                                  .env = to_environment(env),
                                  .cwd = to_os(cwd),
                                  .stdout_path = to_os(stdout_path),
                                  .stderr_path = to_os(stderr_path),
                                  .cpus = std::move(cpus)};
           }),
           py::arg("argv"), py::kw_only(), py::arg("env"), py::arg("cwd") = "",
           py::arg("stdout_path") = "", py::arg("stderr_path") = "", py::arg("cpus") = py::list())
      .def("__repr__", [](const WorkerCommand& self) {
        std::string text = "<WorkerCommand";
        for (const std::string& word : self.argv) {
          text += " " + std::string(py::repr(from_os(word)));
        }
        return text + ">";
      });
}

}  // namespace

void bind_worker_group(py::module_& module) {
  bind_words(module);
  bind_exit(module);
  bind_event(module);
  bind_command(module);

  using Options = WorkerGroupOptions;
  py::class_<PyWorkerGroup> bound(
      module, "WorkerGroup", "The workers of one node: started, supervised and stopped together.");
  def_init<Options>(
      &bound,
      [](const Options& options) {
        auto created = without_gil([&] { return WorkerGroup::create(options); });
        return PyWorkerGroup(unwrap(std::move(created)),
                             {StatusCode::kFailedPrecondition, "the worker group is closed"});
      },
      py::kw_only(), os_option("guardian_path", &Options::guardian_path),
      option("become_subreaper", &Options::become_subreaper),
      option("start_timeout", &Options::start_timeout),
      option("leftover_grace", &Options::leftover_grace));
  bound
      .def(
          "start",
          [](const PyWorkerGroup& self, std::vector<WorkerCommand> commands) {
            check(self.call([&](WorkerGroup& group) { return group.start(std::move(commands)); }));
          },
          py::arg("commands"), "Start one worker for each command; events report the outcome.")
      .def(
          "stop",
          [](const PyWorkerGroup& self, int signal, Duration grace, SignalScope scope) {
            self.call([&](WorkerGroup& group) { group.stop(signal, grace, scope); });
          },
          py::arg("signal"), py::arg("grace"), py::arg("scope") = SignalScope::kGroup,
          "Signal the workers, and kill all their processes after `grace` seconds.")
      .def(
          "forward",
          [](const PyWorkerGroup& self, int signal, SignalScope scope,
             std::optional<int> local_rank) {
            self.call([&](WorkerGroup& group) { group.forward(signal, scope, local_rank); });
          },
          py::arg("signal"), py::arg("scope") = SignalScope::kGroup,
          py::arg("local_rank") = py::none(),
          "Deliver a signal to all workers, or to one, without stopping them.")
      .def("next_event", &PyWorkerGroup::next_event, py::arg("timeout") = py::none(),
           "The next event; None after `timeout` seconds without one. Signal handlers run during\n"
           "the call.")
      .def("close", &PyWorkerGroup::close, "Kill all workers.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyWorkerGroup& self, const py::args&) { self.close(); });
}

}  // namespace elastic::bindings
