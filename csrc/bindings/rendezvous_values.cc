// elastic._C.RendezvousOptions and JobResult: the options of a node's rendezvous, the job's
// settings and its result.

#include "bindings/rendezvous_values.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/errors.h"
#include "bindings/python_backend.h"
#include "elastic/agent.h"
#include "elastic/host_addresses.h"
#include "elastic/rendezvous_options.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

std::vector<std::pair<std::string, std::string>> to_pairs(const TextDict& settings) {
  std::vector<std::pair<std::string, std::string>> pairs;
  pairs.reserve(settings.size());
  for (const auto& [name, value] : settings) {
    pairs.emplace_back(py::cast<std::string>(name), py::cast<std::string>(value));
  }
  return pairs;
}

RendezvousOptions make_options(
    std::string endpoint_host, std::uint16_t endpoint_port, std::optional<bool> is_host,
    int min_nodes, int max_nodes, std::string local_addr, int node_rank, std::string topology,
    bool static_ranks, LossPolicy on_loss, int max_membership_changes,
    const TextDict& extra_settings, double join_timeout, double last_call_timeout, double settle,
    double shrink_delay, double node_timeout, double reconnect_grace, double store_grace,
    double override_timeout, const py::object& backend, int voters,
    std::pair<std::uint16_t, std::uint16_t> voter_ports, const py::str& token_file,
    const py::str& token, std::vector<std::pair<std::string, std::uint16_t>> further,
    std::optional<std::pair<std::string, std::uint16_t>> witness, const py::str& observer_socket) {
  RendezvousOptions options;
  options.endpoint_host = std::move(endpoint_host);
  options.endpoint_port = endpoint_port;
  options.is_host = is_host;
  options.local_addr = std::move(local_addr);
  options.node_rank = node_rank;
  options.topology = std::move(topology);
  options.settings.min_nodes = min_nodes;
  options.settings.max_nodes = max_nodes;
  options.settings.max_membership_changes = max_membership_changes;
  options.settings.static_ranks = static_ranks;
  options.settings.on_loss = on_loss;
  options.settings.extra = to_pairs(extra_settings);
  options.settings.join_timeout = to_duration(join_timeout);
  options.settings.last_call_timeout = to_duration(last_call_timeout);
  options.settings.settle = to_duration(settle);
  options.settings.shrink_delay = to_duration(shrink_delay);
  options.settings.node_timeout = to_duration(node_timeout);
  options.settings.reconnect_grace = to_duration(reconnect_grace);
  options.settings.store_grace = to_duration(store_grace);
  if (!backend.is_none()) options.backend = to_backend(backend);
  options.override_timeout = to_duration(override_timeout);
  options.voters = voters;
  options.voter_ports = {voter_ports.first, voter_ports.second};
  options.token = {.file = to_os(token_file), .text = to_os(token)};
  options.observer_socket = to_os(observer_socket);
  if (witness) options.witness = Endpoint{std::move(witness->first), witness->second};
  for (auto& [host, port] : further) options.further_endpoints.push_back({std::move(host), port});
  return options;
}

void bind_rendezvous_options(py::module_& module) {
  py::enum_<LossPolicy>(module, "LossPolicy",
                        "What happens when the loss of a node leaves fewer than min_nodes.")
      .value("REPLACE", LossPolicy::kReplace)
      .value("FAIL", LossPolicy::kFail);
  const RendezvousOptions plain;
  const JobSettings& settings = plain.settings;
  py::class_<RendezvousOptions>(module, "RendezvousOptions",
                                "The options of a node's rendezvous, and the job's settings.")
      .def(
          py::init(&make_options), py::kw_only(), py::arg("endpoint_host") = plain.endpoint_host,
          py::arg("endpoint_port") = plain.endpoint_port, py::arg("is_host") = plain.is_host,
          py::arg("min_nodes") = settings.min_nodes, py::arg("max_nodes") = settings.max_nodes,
          py::arg("local_addr") = plain.local_addr, py::arg("node_rank") = plain.node_rank,
          py::arg("topology") = plain.topology, py::arg("static_ranks") = settings.static_ranks,
          py::arg("on_loss") = settings.on_loss,
          py::arg("max_membership_changes") = settings.max_membership_changes,
          py::arg("extra_settings") = py::dict(),
          py::arg("join_timeout") = to_seconds(settings.join_timeout),
          py::arg("last_call_timeout") = to_seconds(settings.last_call_timeout),
          py::arg("settle") = to_seconds(settings.settle),
          py::arg("shrink_delay") = to_seconds(settings.shrink_delay),
          py::arg("node_timeout") = to_seconds(settings.node_timeout),
          py::arg("reconnect_grace") = to_seconds(settings.reconnect_grace),
          py::arg("store_grace") = to_seconds(settings.store_grace),
          py::arg("override_timeout") = to_seconds(plain.override_timeout),
          py::arg("backend") = py::none(), py::arg("voters") = plain.voters,
          py::arg("voter_ports") = std::pair(plain.voter_ports.first, plain.voter_ports.last),
          py::arg("token_file") = "", py::arg("token") = "",
          py::arg("further_endpoints") = std::vector<std::pair<std::string, std::uint16_t>>(),
          py::arg("witness") = py::none(), py::arg("observer_socket") = "",
          "Without an endpoint or a backend (a RendezvousBackend, or an object like one) the job "
          "has one node. Times are seconds. `extra_settings` are compared with those of the "
          "other nodes. The token, or the file with it, is the secret with which sessions with a "
          "coordinator are encrypted and authenticated. `observer_socket`: of a job with one node, "
          "the path of the Unix-domain socket at which observers connect.")
      .def_readonly("endpoint_host", &RendezvousOptions::endpoint_host)
      .def_readonly("endpoint_port", &RendezvousOptions::endpoint_port)
      .def_readonly("local_addr", &RendezvousOptions::local_addr)
      .def_property_readonly("endpoints",
                             [](const RendezvousOptions& self) {
                               std::vector<std::pair<std::string, std::uint16_t>> all;
                               if (self.endpoint_host.empty()) return all;
                               all.emplace_back(self.endpoint_host, self.endpoint_port);
                               for (const Endpoint& one : self.further_endpoints) {
                                 all.emplace_back(one.host, one.port);
                               }
                               return all;
                             })
      .def_property_readonly("is_single_node", &RendezvousOptions::is_single_node);
  show_fields<RendezvousOptions>({"endpoint_host", "endpoint_port", "local_addr"});
}

using ResultFields = std::tuple<JobOutcome, JobCause, int, int, std::string, std::string,
                                std::vector<std::string>, std::optional<FailureEvidence>>;

using EvidenceFields =
    std::tuple<std::string, std::int64_t, std::string, int, int, std::string, std::string>;

ResultFields fields_of_result(const JobResult& one) {
  return {one.outcome, one.cause,   one.exit_code, one.rank,
          one.node,    one.message, one.lost,      one.evidence};
}

JobResult result_of(const ResultFields& fields) {
  JobResult one;
  std::tie(one.outcome, one.cause, one.exit_code, one.rank, one.node, one.message, one.lost,
           one.evidence) = fields;
  return one;
}

void bind_result(py::module_& module) {
  py::enum_<JobOutcome>(module, "JobOutcome", "How a job ended.")
      .value("SUCCEEDED", JobOutcome::kSucceeded)
      .value("FAILED", JobOutcome::kFailed)
      .value("CLOSED", JobOutcome::kClosed);
  py::enum_<JobCause>(module, "JobCause", "Why a job that did not succeed ended.")
      .value("NONE", JobCause::kNone)
      .value("WORKER", JobCause::kWorker)
      .value("NODE_LOST", JobCause::kNodeLost)
      .value("TOO_FEW_NODES", JobCause::kTooFewNodes)
      .value("REQUESTED", JobCause::kRequested);
  py::class_<FailureEvidence>(module, "FailureEvidence",
                              "Details of a failed worker for the report.")
      .def_readonly("host", &FailureEvidence::host, "host name of its node")
      .def_property_readonly(
          "time", [](const FailureEvidence& self) { return static_cast<double>(self.time) / 1e9; },
          "of the earliest evidence, in seconds since 1970 on that host's clock")
      .def_readonly("output", &FailureEvidence::output, "the last lines of its stderr")
      .def_property_readonly(
          "failure_class",
          [](const FailureEvidence& self) { return to_string(self.failure_class); },
          "user worker, user input, platform or infrastructure")
      .def_property_readonly(
          "cause", [](const FailureEvidence& self) { return to_string(self.cause); },
          "exit code, exception, signal, out of memory, GPU fault, not started, unreachable, "
          "hang or unknown")
      .def_readonly("error", &FailureEvidence::error, "an exception with its message, in one line")
      .def_readonly("hint", &FailureEvidence::hint)
      .def(
          "__eq__",
          [](const FailureEvidence& self, const FailureEvidence& other) { return self == other; },
          py::is_operator())
      .def(py::pickle(
          [](const FailureEvidence& one) {
            return EvidenceFields(one.host, one.time, one.output,
                                  static_cast<int>(one.failure_class), static_cast<int>(one.cause),
                                  one.error, one.hint);
          },
          [](const EvidenceFields& fields) {
            const auto& [host, time, text, failure_class, cause, error, hint] = fields;
            return FailureEvidence{.host = host,
                                   .time = time,
                                   .output = text,
                                   .failure_class = static_cast<FailureClass>(failure_class),
                                   .cause = static_cast<FailureCause>(cause),
                                   .error = error,
                                   .hint = hint};
          }));
  show_fields<FailureEvidence>({"host", "time", "output"});
  py::class_<JobResult>(module, "JobResult", "The result of a job, which every node receives.")
      .def_readonly("outcome", &JobResult::outcome)
      .def_readonly("cause", &JobResult::cause)
      .def_readonly("exit_code", &JobResult::exit_code, "the cause's exit code, if it has one")
      .def_property_readonly("launcher_exit_code",
                             py::overload_cast<const JobResult&>(&exit_code_of),
                             "the exit code of the job's agents")
      .def_readonly("rank", &JobResult::rank,
                    "of the worker that failed first; -1: no worker failed")
      .def_readonly("node", &JobResult::node, "the name of its node, or of the lost node")
      .def_readonly("message", &JobResult::message)
      .def_readonly("evidence", &JobResult::evidence, "of the worker that failed first, or None")
      .def_readonly("lost", &JobResult::lost, "names of nodes lost in the last round")
      .def(
          "__eq__", [](const JobResult& self, const JobResult& other) { return self == other; },
          py::is_operator())
      .def(py::pickle(&fields_of_result, &result_of));
  show_fields<JobResult>({"outcome", "cause", "exit_code", "rank", "node", "message", "lost"});
}

}  // namespace

void bind_rendezvous_values(py::module_& module) {
  module.def(
      "host_addresses",
      [] {
        std::vector<std::pair<std::string, std::string>> found;
        for (const HostAddress& one : host_addresses()) {
          found.emplace_back(one.interface_name, one.address);
        }
        return found;
      },
      "The interfaces of this host that are up, each with one of its addresses; loopback too, but "
      "no link-local address. Thread-safe.");
  module.def(
      "check_token",
      [](const std::string& run_id, const py::str& token_file, const py::str& token) {
        const Status fault =
            elastic::check_token({.file = to_os(token_file), .text = to_os(token)}, run_id);
        if (fault.ok()) return;
        raise_status(Status(StatusCode::kInvalidArgument, std::string(fault.message())));
      },
      py::arg("run_id"), py::kw_only(), py::arg("token_file") = "", py::arg("token") = "",
      "Raises ConfigError if a node of this job cannot use the token.");
  module.def(
      "observer_token",
      [](const std::string& run_id, const py::str& token_file, const py::str& token) {
        return unwrap(
            elastic::observer_token({.file = to_os(token_file), .text = to_os(token)}, run_id));
      },
      py::arg("run_id"), py::kw_only(), py::arg("token_file") = "", py::arg("token") = "",
      "A token with which the job's state can be read, derived from the job's token.");
  bind_rendezvous_options(module);
  bind_result(module);
}

}  // namespace elastic::bindings
