// elastic._C.RendezvousOptions and JobResult: the options of a node's rendezvous, the job's
// settings and its result; RendezvousClient and the rounds that it returns.

#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "bindings/options.h"
#include "bindings/owner.h"
#include "elastic/agent.h"
#include "elastic/rendezvous_client.h"
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

void bind_rendezvous_options(py::module_& module) {
  py::enum_<LossPolicy>(module, "LossPolicy",
                        "What happens when the loss of a node leaves fewer than min_nodes.")
      .value("REPLACE", LossPolicy::kReplace)
      .value("FAIL", LossPolicy::kFail);
  using Options = RendezvousOptions;
  const auto setting = [](const char* name, auto member) {
    return option(name, &Options::settings, member);
  };
  py::class_<Options> options(module, "RendezvousOptions",
                              "The options of a node's rendezvous, and the job's settings.");
  def_init<Options>(
      &options, std::identity(),
      "Without an endpoint or a backend (a RendezvousBackend, or an object like one) the job "
      "has one node. Times are seconds. `extra_settings` are compared with those of the "
      "other nodes. The token, or the file with it, is the secret with which sessions with a "
      "coordinator are encrypted and authenticated. `observer_socket`: of a job with one node, "
      "the path of the Unix-domain socket at which observers connect.",
      py::kw_only(), option("endpoint_host", &Options::endpoint_host),
      option("endpoint_port", &Options::endpoint_port), option("is_host", &Options::is_host),
      setting("min_nodes", &JobSettings::min_nodes), setting("max_nodes", &JobSettings::max_nodes),
      option("local_addr", &Options::local_addr), option("node_rank", &Options::node_rank),
      option("topology", &Options::topology), setting("static_ranks", &JobSettings::static_ranks),
      setting("on_loss", &JobSettings::on_loss),
      setting("max_membership_changes", &JobSettings::max_membership_changes),
      option_by<Options, TextDict>(
          "extra_settings", py::dict(),
          [](auto* made, const TextDict& extra) { made->settings.extra = to_pairs(extra); }),
      setting("join_timeout", &JobSettings::join_timeout),
      setting("last_call_timeout", &JobSettings::last_call_timeout),
      setting("settle", &JobSettings::settle), setting("shrink_delay", &JobSettings::shrink_delay),
      setting("node_timeout", &JobSettings::node_timeout),
      setting("reconnect_grace", &JobSettings::reconnect_grace),
      setting("store_grace", &JobSettings::store_grace),
      option_by<Options, py::object>("backend", py::none(),
                                     [](auto* made, const py::object& backend) {
                                       if (backend.is_none()) return;
                                       made->backend = to_backend(backend);
                                     }),
      option("voters", &Options::voters), option("voter_ports", &Options::voter_ports),
      os_option("token_file", &Options::token, &TokenOptions::file),
      os_option("token", &Options::token, &TokenOptions::text),
      option("further_endpoints", &Options::further_endpoints),
      option("witness", &Options::witness), option("on_exclude", &Options::on_exclude),
      os_option("observer_socket", &Options::observer_socket));
  options.def_readonly("endpoint_host", &Options::endpoint_host)
      .def_readonly("endpoint_port", &Options::endpoint_port)
      .def_readonly("local_addr", &Options::local_addr)
      .def_property_readonly("endpoints",
                             [](const Options& self) {
                               std::vector<Endpoint> all;
                               if (self.endpoint_host.empty()) return all;
                               all = self.further_endpoints;
                               all.insert(all.begin(), {self.endpoint_host, self.endpoint_port});
                               return all;
                             })
      .def_property_readonly("is_single_node", &Options::is_single_node);
  show_fields<RendezvousOptions>({"endpoint_host", "endpoint_port", "local_addr"});
}

using ResultFields = std::tuple<JobOutcome, JobCause, int, int, std::string, std::uint64_t,
                                std::uint64_t, std::string, std::vector<std::string>,
                                std::vector<std::string>, std::optional<FailureEvidence>>;

using EvidenceFields =
    std::tuple<std::string, std::int64_t, std::string, int, int, std::string, std::string>;

ResultFields fields_of_result(const JobResult& one) {
  return {one.outcome,     one.cause,   one.exit_code, one.rank,     one.node,    one.node_id.high,
          one.node_id.low, one.message, one.lost,      one.finished, one.evidence};
}

JobResult result_of(const ResultFields& fields) {
  JobResult one;
  std::tie(one.outcome, one.cause, one.exit_code, one.rank, one.node, one.node_id.high,
           one.node_id.low, one.message, one.lost, one.finished, one.evidence) = fields;
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
      .def_readonly(
          "finished", &JobResult::finished,
          "names of nodes whose ranks had all exited with 0, if one of another node failed")
      .def(
          "__eq__", [](const JobResult& self, const JobResult& other) { return self == other; },
          py::is_operator())
      .def(py::pickle(&fields_of_result, &result_of));
  show_fields<JobResult>({"outcome", "cause", "exit_code", "rank", "node", "message", "lost"});
}

using PyClient = Owner<RendezvousClient>;

PyClient start_client(RendezvousClientOptions options) {
  auto started = without_gil([&] { return RendezvousClient::start(std::move(options)); });
  return {unwrap(std::move(started), Domain::kRendezvous),
          {StatusCode::kInvalidArgument, "the rendezvous client is closed"}};
}

RendezvousRound next_rendezvous(const PyClient& self, std::optional<Duration> timeout) {
  const Instant deadline = to_deadline(timeout);
  auto round = self.wait([&](RendezvousClient& client, const std::function<bool()>& interrupted) {
    return client.next_rendezvous(deadline, interrupted);
  });
  if (round.status().code() == StatusCode::kCancelled) self.check_open();
  return unwrap(std::move(round), Domain::kRendezvous);
}

bool leave(const PyClient& self, const std::string& reason, Duration timeout) {
  const bool is_received =
      self.wait([&](RendezvousClient& client, const std::function<bool()>& interrupted) {
        return client.leave(reason, timeout, interrupted);
      });
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return is_received;
}

void set_closed(const PyClient& self, std::string message, int exit_code) {
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
  if (exit_code < 0 || exit_code > 255) {
    throw py::value_error("exit_code is " + std::to_string(exit_code) + ": expected 0 to 255");
  }
  result.exit_code = exit_code;
  result.message = std::move(message);
  self.call([&](RendezvousClient& client) { client.set_closed(result); });
}

void bind_rendezvous_round(py::module_& module) {
  const auto of_record = [](auto member) { return getter(&RendezvousRound::record, member); };
  py::class_<RendezvousRound>(module, "RendezvousRound", "A round, and this node's ranks in it.")
      .def_property_readonly(
          "round", [](const RendezvousRound& self) { return shown_round(self.record.round); },
          "from 0")
      .def_property_readonly("nodes", of_record(&RoundRecord::nodes))
      .def_property_readonly("world_size", of_record(&RoundRecord::world_size))
      .def_property_readonly("master_addr", of_record(&RoundRecord::master_addr))
      .def_property_readonly("master_port", of_record(&RoundRecord::master_port))
      .def_property_readonly("restarts", of_record(&RoundRecord::restarts))
      .def_property_readonly("group_rank",
                             getter(&RendezvousRound::own, &NodeAssignment::group_rank))
      .def_property_readonly("base_rank", getter(&RendezvousRound::own, &NodeAssignment::base_rank),
                             "the global rank of this node's first worker");
  show_fields<RendezvousRound>(
      {"round", "group_rank", "nodes", "world_size", "base_rank", "master_addr", "master_port"});
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
        const TokenOptions options{.file = to_os(token_file), .text = to_os(token)};
        const Status fault = without_gil([&] { return elastic::check_token(options, run_id); });
        if (fault.ok()) return;
        raise_status(Status(StatusCode::kInvalidArgument, std::string(fault.message())));
      },
      py::arg("run_id"), py::kw_only(), py::arg("token_file") = "", py::arg("token") = "",
      "Raises ConfigError if a node of this job cannot use the token.");
  module.def(
      "observer_token",
      [](const std::string& run_id, const py::str& token_file, const py::str& token) {
        const TokenOptions options{.file = to_os(token_file), .text = to_os(token)};
        return unwrap(without_gil([&] { return elastic::observer_token(options, run_id); }));
      },
      py::arg("run_id"), py::kw_only(), py::arg("token_file") = "", py::arg("token") = "",
      "A token with which the job's state can be read, derived from the job's token.");
  bind_rendezvous_options(module);
  bind_result(module);
}

void bind_rendezvous_client(py::module_& module) {
  bind_rendezvous_round(module);
  using Options = RendezvousClientOptions;
  py::class_<PyClient> bound(
      module, "RendezvousClient",
      "A node's membership in its job's rendezvous, for programs that start their workers\n"
      "themselves. One native thread maintains it.");
  def_init<Options>(&bound, &start_client, required("rendezvous", &Options::rendezvous),
                    py::kw_only(), option("run_id", &Options::run_id),
                    option("local_world_size", &Options::local_world_size),
                    option("role", &Options::role), option("stop_grace", &Options::stop_grace),
                    option("store_port", &Options::store_port),
                    "Begins to connect; does not join yet. Times are seconds.");
  bound
      .def("next_rendezvous", &next_rendezvous, py::arg("timeout") = py::none(),
           "Joins, and waits for a round with this node. During a round it first reports that all\n"
           "its workers have ended. Signal handlers run during the call and may raise.")
      .def("waiting_nodes",
           [](const PyClient& self) {
             return self.call([](RendezvousClient& client) { return client.waiting_nodes(); });
           })
      .def("is_closed",
           [](const PyClient& self) {
             return self.call([](RendezvousClient& client) { return client.is_closed(); });
           })
      .def_property_readonly(
          "result",
          [](const PyClient& self) {
            return self.call([](RendezvousClient& client) { return client.result(); });
          },
          "None while the job is open")
      .def("set_closed", &set_closed, py::arg("message") = "the job was closed", py::kw_only(),
           py::arg("exit_code") = 0, "Closes the job for all nodes.")
      .def("leave", &leave, py::arg("reason"), py::arg("timeout"),
           "Sends a leave and waits for its acknowledgement. False: it was not acknowledged.")
      .def_property_readonly(
          "address",
          [](const PyClient& self) {
            return self.call([](RendezvousClient& client) { return client.address(); });
          },
          "the address at which others reach this node; empty until it is known")
      .def(
          "take_log_lines",
          [](const PyClient& self) {
            return self.call([](RendezvousClient& client) { return client.take_log_lines(); });
          },
          "Log messages since the last call.")
      .def("close", &PyClient::close,
           "Without an earlier leave(), the other nodes treat it as a crash.");
}

}  // namespace elastic::bindings
