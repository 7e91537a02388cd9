// elastic._C.RendezvousClient and the rounds that it returns.

#include "elastic/rendezvous_client.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/errors.h"
#include "bindings/module.h"
#include "bindings/options.h"
#include "bindings/owner.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

using PyClient = Owner<RendezvousClient>;

PyClient start_client(RendezvousClientOptions options) {
  auto started = [&] {
    const py::gil_scoped_release release;
    return RendezvousClient::start(std::move(options));
  }();
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
  return self.call([&](RendezvousClient& client) { return client.leave(reason, timeout); });
}

void set_closed(const PyClient& self, std::string message, int exit_code) {
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
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
