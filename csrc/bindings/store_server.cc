// elastic._C.StoreServer.

#include "elastic/store_server.h"

#include <memory>
#include <string>
#include <utility>

#include "bindings/convert.h"
#include "bindings/errors.h"
#include "bindings/module.h"
#include "bindings/options.h"

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

ServerHolder start_server(const StoreServerOptions& options) {
  Result<std::unique_ptr<StoreServer>> server = [&] {
    const py::gil_scoped_release release;
    return StoreServer::start(options);
  }();
  return ServerHolder(unwrap(std::move(server), Domain::kStore).release());
}

void close(StoreServer& self, Duration drain) {
  const py::gil_scoped_release release;
  self.close(drain);
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
  using Options = StoreServerOptions;
  const auto limit = [](const char* name, auto member) {
    return option(name, &Options::limits, member);
  };
  py::class_<StoreServer, ServerHolder> bound(module, "StoreServer", kServerDoc);
  def_init<Options>(&bound, &start_server, option("host", &Options::host),
                    option("port", &Options::port), py::kw_only(),
                    limit("key_bytes_max", &StoreLimits::key_bytes_max),
                    limit("value_bytes_max", &StoreLimits::value_bytes_max),
                    limit("item_count_max", &StoreLimits::item_count_max),
                    limit("frame_bytes_max", &StoreLimits::frame_bytes_max),
                    limit("output_bytes_max", &StoreLimits::output_bytes_max),
                    limit("total_bytes_max", &StoreLimits::total_bytes_max),
                    limit("connections_max", &StoreLimits::connections_max));
  bound.def_property_readonly("host", &StoreServer::host, "The numeric address that is bound.")
      .def_property_readonly("port", &StoreServer::port)
      .def("stats", &StoreServer::stats, py::call_guard<py::gil_scoped_release>())
      .def("close", &close, py::arg("drain") = Duration::zero(),
           "Stops the server; waits up to `drain` seconds for received requests to finish.")
      .def(
          "__enter__", [](StoreServer& self) -> StoreServer& { return self; },
          py::return_value_policy::reference)
      .def("__exit__", [](StoreServer& self, const py::args&) { close(self, Duration::zero()); })
      .def("__repr__", [](const StoreServer& self) {
        return "StoreServer('" + self.host() + "', " + std::to_string(self.port()) + ")";
      });
}

}  // namespace elastic::bindings
