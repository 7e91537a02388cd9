// elastic._C.StoreServer.

#include "elastic/store_server.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "bindings/convert.h"
#include "bindings/errors.h"
#include "bindings/store.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

// Deletes without the GIL, because the server's destructor joins a thread.
struct WithoutGil {
  void operator()(StoreServer* server) const {
    const py::gil_scoped_release release;
    delete server;
  }
};
using ServerHolder = std::unique_ptr<StoreServer, WithoutGil>;

ServerHolder start(std::string host, std::uint16_t port, const StoreLimits& limits) {
  StoreServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.limits = limits;
  Result<std::unique_ptr<StoreServer>> server = [&] {
    const py::gil_scoped_release release;
    return StoreServer::start(options);
  }();
  return ServerHolder(unwrap(std::move(server), Domain::kStore).release());
}

void close(StoreServer& self, double drain) {
  const py::gil_scoped_release release;
  self.close(to_duration(drain));
}

void bind_stats(py::module_& module) {
  py::class_<StoreServerStats>(module, "StoreServerStats", "Counters of a server since its start.")
      .def_readonly("connections", &StoreServerStats::connections, "Open now.")
      .def_readonly("connections_total", &StoreServerStats::connections_total,
                    "Accepted since the start.")
      .def_readonly("connections_rejected", &StoreServerStats::connections_rejected,
                    "Closed for a protocol violation or a limit.")
      .def_readonly("requests", &StoreServerStats::requests)
      .def_readonly("keys", &StoreServerStats::keys)
      .def_readonly("bytes", &StoreServerStats::bytes, "Keys, values and buffers held now.");
  show_fields<StoreServerStats>({"connections", "requests", "keys", "bytes"});
}

constexpr const char* kServerDoc =
    "A key-value store server that PyTorch's TCPStore clients and StoreClient connect to.\n\n"
    "It runs in a native thread until close(), the end of a with block, or until no variable "
    "refers\n"
    "to it. `host` is what to bind: an address, a name, or \"\" for every interface. Port 0 is "
    "any\n"
    "free one. The other arguments limit what a connection may send and the server may store; a\n"
    "client that exceeds one is disconnected. Raises ConfigError (not an address of this machine)\n"
    "and StoreUnavailable (the port is in use).";

}  // namespace

void bind_store_server(py::module_& module) {
  bind_stats(module);
  constexpr StoreLimits kDefaults;
  py::class_<StoreServer, ServerHolder>(module, "StoreServer", kServerDoc)
      .def(py::init([](std::string host, std::uint16_t port, std::size_t key_bytes_max,
                       std::size_t value_bytes_max, std::size_t item_count_max,
                       std::size_t frame_bytes_max, std::size_t output_bytes_max,
                       std::size_t total_bytes_max, std::size_t connections_max) {
             return start(std::move(host), port,
                          {.key_bytes_max = key_bytes_max,
                           .value_bytes_max = value_bytes_max,
                           .item_count_max = item_count_max,
                           .frame_bytes_max = frame_bytes_max,
                           .output_bytes_max = output_bytes_max,
                           .total_bytes_max = total_bytes_max,
                           .connections_max = connections_max});
           }),
           py::arg("host") = StoreServerOptions().host, py::arg("port") = StoreServerOptions().port,
           py::kw_only(), py::arg("key_bytes_max") = kDefaults.key_bytes_max,
           py::arg("value_bytes_max") = kDefaults.value_bytes_max,
           py::arg("item_count_max") = kDefaults.item_count_max,
           py::arg("frame_bytes_max") = kDefaults.frame_bytes_max,
           py::arg("output_bytes_max") = kDefaults.output_bytes_max,
           py::arg("total_bytes_max") = kDefaults.total_bytes_max,
           py::arg("connections_max") = kDefaults.connections_max)
      .def_property_readonly("host", &StoreServer::host, "The numeric address that is bound.")
      .def_property_readonly("port", &StoreServer::port)
      .def("stats", &StoreServer::stats, py::call_guard<py::gil_scoped_release>())
      .def("close", &close, py::arg("drain") = 0.0,
           "Stops the server; waits up to `drain` seconds for received requests to finish.")
      .def(
          "__enter__", [](StoreServer& self) -> StoreServer& { return self; },
          py::return_value_policy::reference)
      .def("__exit__", [](StoreServer& self, const py::args&) { close(self, 0.0); })
      .def("__repr__", [](const StoreServer& self) {
        return "StoreServer('" + self.host() + "', " + std::to_string(self.port()) + ")";
      });
}

}  // namespace elastic::bindings
