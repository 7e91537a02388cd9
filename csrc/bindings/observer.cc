// elastic._C.Observer: snapshots of a running job, as dictionaries.

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "bindings/options.h"
#include "bindings/owner.h"
#include "elastic/observer.h"

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
                "silence"_a = node.silence, "host"_a = py::none(), "workers_round"_a = py::none(),
                "workers"_a = py::none());
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
                "formed"_a = round.formed, "ended"_a = round.ended,
                "first_step"_a = round.first_step, "failed"_a = round.failed,
                "stopped"_a = round.stopped, "cause"_a = py::none(), "reason"_a = round.reason,
                "node"_a = round.node, "rank"_a = round.rank, "exit_code"_a = round.exit_code,
                "rule"_a = round.rule);
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
                               "idle_seconds"_a = one.idle));
  }
  py::dict dict("id"_a = job.id, "term"_a = job.term, "coordinator"_a = job.coordinator,
                "now"_a = job.now, "wall_time"_a = static_cast<double>(job.wall_time) * 1e-9,
                "phase"_a = name_of(job.phase), "description"_a = job.description,
                "min_nodes"_a = job.settings.min_nodes, "max_nodes"_a = job.settings.max_nodes,
                "max_restarts"_a = job.settings.max_restarts,
                "node_timeout"_a = job.settings.node_timeout);
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
  dict["began"] = job.began;
  dict["running"] = job.running;
  dict["rounds"] = rounds;
  dict["stragglers"] = stragglers;
  dict["hang"] = py::none();
  if (const auto& hang = job.hang) {
    dict["hang"] = py::dict("idle_seconds"_a = hang->idle, "step"_a = hang->step,
                            "rank"_a = hang->rank, "place"_a = hang->place);
  }
  dict["stall"] = py::none();
  if (const auto& stall = job.stall) {
    dict["stall"] = py::dict("idle_seconds"_a = stall->idle, "rank"_a = stall->rank,
                             "message"_a = stall->text, "place"_a = stall->place);
  }
  dict["mismatch"] = job.mismatch;
  dict["progress"] = py::none();
  if (const auto& progress = job.progress) {
    dict["progress"] = py::dict("step"_a = progress->step, "slowest"_a = progress->slowest,
                                "ranks"_a = progress->ranks, "step_time"_a = progress->step_time);
  }
  dict["saved"] = py::none();
  if (const auto& saved = job.saved) {
    py::dict dict_of_saved("step"_a = saved->step, "age"_a = saved->age, "copied"_a = saved->copied,
                           "memory"_a = py::none());
    if (const auto& memory = saved->memory) {
      dict_of_saved["memory"] =
          py::dict("own"_a = memory->own, "copies"_a = memory->copies, "needed"_a = memory->needed,
                   "limit"_a = memory->limit, "node"_a = to_string(memory->node));
    }
    dict["saved"] = dict_of_saved;
  }
  py::list findings;
  for (const ObservedFinding& one : job.findings) {
    findings.append(py::dict("host"_a = one.host, "text"_a = one.text, "age"_a = one.age));
  }
  dict["findings"] = findings;
  py::list excluded;
  for (const ObservedExclusion& one : job.excluded) {
    excluded.append(py::dict("host"_a = one.host, "left"_a = one.left, "reason"_a = one.reason,
                             "times"_a = one.times));
  }
  dict["excluded"] = excluded;
  dict["host_answer"] = job.host_answer;
  dict["is_host_done"] = job.is_host_done;
  dict["result"] = job.result ? py::cast(*job.result) : py::none();
  dict["nodes"] = nodes;
  dict["stacks"] = job.stacks;
  dict["drain"] = job.drain;
  dict["is_drain_agreed"] = job.is_drain_agreed;
  return dict;
}

PyObserver start_observer(ObserverOptions options) {
  auto started = without_gil([&] { return Observer::start(std::move(options)); });
  return {unwrap(std::move(started), Domain::kRendezvous),
          {StatusCode::kFailedPrecondition, "the observer is closed"}};
}

std::optional<py::typing::Dict<py::str, py::object>> next(const PyObserver& self,
                                                          std::optional<Duration> timeout) {
  const Instant deadline = to_deadline(timeout);
  auto job = self.wait([&](Observer& observer, const std::function<bool()>& interrupted) {
    return observer.next(deadline, interrupted);
  });
  if (job.status().code() == StatusCode::kCancelled) self.check_open();
  if (job.status().code() == StatusCode::kDeadlineExceeded) return std::nullopt;
  return to_dict(*unwrap(std::move(job), Domain::kRendezvous));
}

}  // namespace

void bind_observer(py::module_& module) {
  using Options = ObserverOptions;
  py::class_<PyObserver> bound(
      module, "Observer", "A read-only session with a coordinator, which receives a job's state.");
  def_init<Options>(
      &bound, &start_observer, required("host", &Options::endpoint_host),
      required("port", &Options::endpoint_port), py::kw_only(), option("run_id", &Options::run_id),
      option("workers", &Options::workers), option("stacks", &Options::stacks),
      option("drain", &Options::drain), option("drain_reason", &Options::drain_reason),
      option("drain_node", &Options::drain_node), option("host_request", &Options::host_request),
      option("excluded_host", &Options::host), option("host_reason", &Options::host_reason),
      option("connect_timeout", &Options::connect_timeout),
      os_option("token_file", &Options::token, &TokenOptions::file),
      os_option("token", &Options::token, &TokenOptions::text),
      os_option("socket_path", &Options::socket_path),
      "Begins to connect. Without a `run_id` the coordinator must have one job. "
      "`socket_path`: of a job with one node on this host, instead of host and port.");
  bound
      .def("next", &next, py::arg("timeout") = py::none(),
           "The newest snapshot that was not returned before; None after `timeout` seconds.\n"
           "Times are on the scale of time.monotonic() on the coordinator's host, which is `now`.")
      .def("close", &PyObserver::close)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyObserver& self, const py::args&) { self.close(); });
}

}  // namespace elastic::bindings
