// elastic._C.Observer: snapshots of a running job, as dictionaries. And the operator's override.

#include "bindings/observer.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/convert.h"
#include "bindings/errors.h"
#include "bindings/owner.h"
#include "elastic/observer.h"
#include "elastic/override.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

using namespace py::literals;

using PyObserver = Owner<Observer>;

const char* name_of(RendezvousPhase phase) {
  switch (phase) {
    case RendezvousPhase::kForming: return "forming";
    case RendezvousPhase::kRunning: return "running";
    case RendezvousPhase::kClosed: break;
  }
  return "closed";
}

const char* name_of(rdzv::NodePhase phase) {
  switch (phase) {
    case rdzv::NodePhase::kJoined: return "waiting";
    case rdzv::NodePhase::kWorking: return "working";
    case rdzv::NodePhase::kStopped: return "stopped";
    case rdzv::NodePhase::kDone: break;
  }
  return "done";
}

const char* name_of(ObservedWorkerState state) {
  switch (state) {
    case ObservedWorkerState::kStarting: return "starting";
    case ObservedWorkerState::kRunning: return "running";
    case ObservedWorkerState::kSucceeded: return "succeeded";
    case ObservedWorkerState::kFailed: return "failed";
    case ObservedWorkerState::kStopped: break;
  }
  return "stopped";
}

std::optional<double> seconds(const std::optional<Instant>& at) {
  if (!at) return std::nullopt;
  return to_seconds_since_boot(*at);
}

py::dict to_dict(const ObservedWorker& worker) {
  const bool has_ended = worker.state != ObservedWorkerState::kStarting &&
                         worker.state != ObservedWorkerState::kRunning;
  const auto exit_code = has_ended ? std::optional<int>(worker.exit_code) : std::nullopt;
  return py::dict("local_rank"_a = worker.local_rank, "rank"_a = worker.rank, "pid"_a = worker.pid,
                  "state"_a = name_of(worker.state), "exit_code"_a = exit_code);
}

py::dict to_dict(const ObservedNode& node) {
  py::dict dict("id"_a = to_string(node.id), "name"_a = node.name, "address"_a = node.address,
                "role"_a = node.role, "local_world_size"_a = node.local_world_size,
                "state"_a = name_of(node.phase), "rank"_a = node.rank,
                "is_connected"_a = !node.is_suspect, "hosts_coordinator"_a = node.hosts_coordinator,
                "silence"_a = to_seconds(node.silence), "host"_a = py::none(),
                "workers_round"_a = py::none(), "workers"_a = py::none());
  if (node.report) {
    py::list workers;
    for (const ObservedWorker& worker : node.report->workers) workers.append(to_dict(worker));
    dict["host"] = node.report->host;
    dict["workers_round"] = shown_round(node.report->round);
    dict["workers"] = workers;
  }
  return dict;
}

py::dict to_dict(const ObservedRound& round) {
  py::dict dict("round"_a = shown_round(round.round), "nodes"_a = round.nodes,
                "world_size"_a = round.world_size, "restarts"_a = round.restarts,
                "formed"_a = seconds(round.formed), "ended"_a = seconds(round.ended),
                "first_step"_a = seconds(round.first_step), "failed"_a = seconds(round.failed),
                "stopped"_a = seconds(round.stopped), "cause"_a = py::none(),
                "reason"_a = round.reason, "node"_a = round.node, "rank"_a = round.rank,
                "exit_code"_a = round.exit_code);
  if (round.cause) dict["cause"] = to_string(*round.cause);
  return dict;
}

py::dict to_dict(const ObservedJob& job) {
  py::list rounds;
  for (const ObservedRound& round : job.rounds) rounds.append(to_dict(round));
  py::list nodes;
  for (const ObservedNode& node : job.nodes) nodes.append(to_dict(node));
  py::list stragglers;
  for (const ObservedStraggler& one : job.stragglers) {
    stragglers.append(py::dict("rank"_a = one.rank, "node"_a = one.node, "step"_a = one.step,
                               "idle_seconds"_a = to_seconds(one.idle)));
  }
  py::dict dict("id"_a = job.id, "term"_a = job.term, "coordinator"_a = job.coordinator,
                "now"_a = to_seconds_since_boot(job.now),
                "wall_time"_a = static_cast<double>(job.wall_time) * 1e-9,
                "phase"_a = name_of(job.phase), "description"_a = job.description,
                "min_nodes"_a = job.settings.min_nodes, "max_nodes"_a = job.settings.max_nodes,
                "max_restarts"_a = job.settings.max_restarts,
                "node_timeout"_a = to_seconds(job.settings.node_timeout));
  dict["incumbent"] = py::none();
  if (const auto& incumbent = job.incumbent) {
    py::list voters;
    for (const std::string& voter : incumbent->voters) voters.append(voter);
    dict["incumbent"] = py::dict("address"_a = incumbent->address, "lineage"_a = incumbent->lineage,
                                 "voters"_a = std::move(voters));
  }
  dict["has_round"] = job.record.round > 0;
  dict["round"] = shown_round(job.record.round);
  dict["generation"] = job.record.generation;
  dict["nodes_in_round"] = job.record.nodes;
  dict["world_size"] = job.record.world_size;
  dict["master_addr"] = job.record.master_addr;
  dict["master_port"] = job.record.master_port;
  dict["restarts"] = job.record.restarts;
  dict["membership_changes"] = job.record.membership_changes;
  dict["waiting_nodes"] = job.waiting_nodes;
  dict["spare_nodes"] = job.spare_nodes;
  dict["began"] = seconds(job.began);
  dict["running"] = to_seconds(job.running);
  dict["rounds"] = rounds;
  dict["stragglers"] = stragglers;
  dict["hang"] = py::none();
  if (const auto& hang = job.hang) {
    dict["hang"] = py::dict("idle_seconds"_a = to_seconds(hang->idle), "step"_a = hang->step,
                            "rank"_a = hang->rank, "place"_a = hang->place);
  }
  dict["progress"] = py::none();
  if (const auto& progress = job.progress) {
    dict["progress"] =
        py::dict("step"_a = progress->step, "slowest"_a = progress->slowest,
                 "ranks"_a = progress->ranks, "step_time"_a = to_seconds(progress->step_time));
  }
  dict["result"] = job.result ? py::cast(*job.result) : py::none();
  dict["nodes"] = nodes;
  dict["stacks"] = job.stacks;
  dict["drain"] = job.drain;
  dict["is_drain_agreed"] = job.is_drain_agreed;
  return dict;
}

PyObserver start_observer(std::string host, std::uint16_t port, std::string run_id, bool workers,
                          bool stacks, std::optional<double> drain, std::string drain_reason,
                          std::string drain_node, double connect_timeout, const py::str& token_file,
                          const py::str& token, const py::str& socket_path) {
  const TokenOptions secret{.file = to_os(token_file), .text = to_os(token)};
  std::string path = to_os(socket_path);
  std::optional<Duration> limit;
  if (drain) limit = to_duration(*drain);
  auto started = [&] {
    const py::gil_scoped_release release;
    return Observer::start({.endpoint_host = std::move(host),
                            .endpoint_port = port,
                            .socket_path = std::move(path),
                            .run_id = std::move(run_id),
                            .token = secret,
                            .workers = workers,
                            .stacks = stacks,
                            .drain = limit,
                            .drain_reason = std::move(drain_reason),
                            .drain_node = std::move(drain_node),
                            .connect_timeout = to_duration(connect_timeout)});
  }();
  return {unwrap(std::move(started), Domain::kRendezvous),
          {StatusCode::kFailedPrecondition, "the observer is closed"}};
}

std::optional<py::typing::Dict<py::str, py::object>> next(const PyObserver& self,
                                                          std::optional<double> timeout) {
  const Instant deadline = to_deadline(timeout);
  auto job = self.wait([&](Observer& observer, const std::function<bool()>& interrupted) {
    return observer.next(deadline, interrupted);
  });
  if (job.status().code() == StatusCode::kCancelled) self.check_open();
  if (job.status().code() == StatusCode::kDeadlineExceeded) return std::nullopt;
  return to_dict(*unwrap(std::move(job), Domain::kRendezvous));
}

std::pair<bool, std::string> override_coordinator(std::string host, std::uint16_t port,
                                                  std::string run_id, double timeout,
                                                  const py::str& token_file, const py::str& token) {
  const OverrideOptions options{.host = std::move(host),
                                .port = port,
                                .run_id = std::move(run_id),
                                .token = {.file = to_os(token_file), .text = to_os(token)},
                                .timeout = to_duration(timeout)};
  auto answer = [&] {
    const py::gil_scoped_release release;
    return elastic::override_coordinator(options, python_signal_raised);
  }();
  const OverrideAnswer found = unwrap(std::move(answer), Domain::kRendezvous);
  return {found.is_done, found.text};
}

}  // namespace

void bind_observer(py::module_& module) {
  module.def("override_coordinator", &override_coordinator, py::arg("host"), py::arg("port"),
             py::kw_only(), py::arg("run_id"), py::arg("timeout") = 15.0,
             py::arg("token_file") = "", py::arg("token") = "",
             "Tells the voter at this address to go on without the voters that are lost. Returns "
             "whether it does, and one sentence.");
  py::class_<PyObserver>(module, "Observer",
                         "A read-only session with a coordinator, which receives a job's state.")
      .def(py::init(&start_observer), py::arg("host"), py::arg("port"), py::kw_only(),
           py::arg("run_id") = "", py::arg("workers") = true, py::arg("stacks") = false,
           py::arg("drain") = py::none(), py::arg("drain_reason") = "", py::arg("drain_node") = "",
           py::arg("connect_timeout") = 5.0, py::arg("token_file") = "", py::arg("token") = "",
           py::arg("socket_path") = "",
           "Begins to connect. Without a `run_id` the coordinator must have one job. "
           "`socket_path`: of a job with one node on this host, instead of host and port.")
      .def("next", &next, py::arg("timeout") = py::none(),
           "The newest snapshot that was not returned before; None after `timeout` seconds.\n"
           "Times are those of time.monotonic() on the coordinator's host, which is `now`.")
      .def("close", &PyObserver::close)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyObserver& self, const py::args&) { self.close(); });
}

}  // namespace elastic::bindings
