// elastic._C.StoreServer and StoreClient.

#include <pybind11/typing.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "bindings/options.h"
#include "elastic/store_client.h"
#include "elastic/store_server.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

// A key or value: str as UTF-8, or bytes. A view of the Python object, which the call keeps alive.
struct Text {
  std::string_view bytes;
};

// A sequence of keys or values, but not a str or bytes: passing one by mistake must be an error.
struct TextSequence {
  std::vector<std::string> items;
};

// Seconds or a timedelta; None means the client's timeout.
struct Timeout {
  StoreClient::Timeout value;
};

}  // namespace
}  // namespace elastic::bindings

namespace pybind11::detail {

using elastic::bindings::Text;
using elastic::bindings::TextSequence;
using elastic::bindings::Timeout;

template <>
struct type_caster<Text> {
  PYBIND11_TYPE_CASTER(Text, const_name("str | bytes"));
  bool load(handle source, bool) {
    if (PyBytes_Check(source.ptr())) {
      value.bytes = {PyBytes_AS_STRING(source.ptr()),
                     static_cast<std::size_t>(PyBytes_GET_SIZE(source.ptr()))};
      return true;
    }
    if (!PyUnicode_Check(source.ptr())) return false;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(source.ptr(), &size);
    if (text == nullptr) throw error_already_set();  // a lone surrogate
    value.bytes = {text, static_cast<std::size_t>(size)};
    return true;
  }
};

template <>
struct type_caster<TextSequence> {
  PYBIND11_TYPE_CASTER(TextSequence, const_name("collections.abc.Sequence[str | bytes]"));
  bool load(handle source, bool convert) {
    if (!PySequence_Check(source.ptr()) || PyBytes_Check(source.ptr()) ||
        PyUnicode_Check(source.ptr())) {
      return false;
    }
    const auto list = reinterpret_borrow<sequence>(source);
    value.items.reserve(list.size());
    for (const handle item : list) {
      type_caster<Text> text;
      if (!text.load(item, convert)) return false;
      value.items.emplace_back(static_cast<Text&>(text).bytes);
    }
    return true;
  }
};

template <>
struct type_caster<Timeout> {
  PYBIND11_TYPE_CASTER(Timeout, const_name("float | datetime.timedelta | None"));
  bool load(handle source, bool) {
    if (source.is_none()) return true;
    double seconds = 0;
    if (PyFloat_Check(source.ptr()) || PyLong_Check(source.ptr())) {
      seconds = PyFloat_AsDouble(source.ptr());
      if (seconds == -1.0 && PyErr_Occurred() != nullptr) throw error_already_set();
    } else if (hasattr(source, "total_seconds")) {
      // Detected by its method, so that `import elastic` need not import datetime.
      seconds = source.attr("total_seconds")().cast<double>();
    } else {
      return false;
    }
    if (std::isnan(seconds) || seconds < 0) {
      elastic::bindings::raise_status(
          {elastic::StatusCode::kInvalidArgument, "a timeout must not be negative"});
    }
    value.value = elastic::from_seconds(seconds);
    return true;
  }
};

}  // namespace pybind11::detail

namespace elastic::bindings {
namespace {

void finish(const Status& status) { check(status, Domain::kStore); }

template <typename T>
T finish(Result<T> result) {
  return unwrap(std::move(result), Domain::kStore);
}

py::bytes finish_bytes(Result<std::string> result) { return py::bytes(finish(std::move(result))); }

std::uint16_t to_port(int port) {
  if (port < 0 || port > 65535) {
    raise_status({StatusCode::kInvalidArgument,
                  "the port " + std::to_string(port) + " is not between 0 and 65535"});
  }
  return static_cast<std::uint16_t>(port);
}

std::unique_ptr<StoreClient> connect(std::string host, int port, const Timeout& timeout) {
  StoreClientOptions options;
  options.host = std::move(host);
  options.port = to_port(port);
  if (timeout.value) options.timeout = *timeout.value;
  options.interrupted = python_signal_raised;
  return finish(without_gil([&] { return StoreClient::connect(std::move(options)); }));
}

// Decodes names to str; undecodable bytes become surrogates.
py::list to_names(const std::vector<std::string>& names) {
  py::list list;
  for (const std::string& name : names) {
    list.append(py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
        name.data(), static_cast<Py_ssize_t>(name.size()), "surrogateescape")));
  }
  return list;
}

void bind_client_keys(py::class_<StoreClient>& client) {
  client
      .def(
          "set",
          [](StoreClient& self, Text key, Text value, Timeout timeout) {
            finish(without_gil([&] { return self.set(key.bytes, value.bytes, timeout.value); }));
          },
          py::arg("key"), py::arg("value"), py::kw_only(), py::arg("timeout") = py::none(),
          "Stores the value. There is no reply: the call returns when the kernel has accepted the\n"
          "request on an open connection, and the server handles later calls of this client after\n"
          "it. If the connection breaks first, the next call raises StoreUnavailable; a ping() "
          "that\n"
          "returns proves that the server handled all earlier requests.")
      .def(
          "get",
          [](StoreClient& self, Text key, Timeout timeout) {
            return finish_bytes(without_gil([&] { return self.get(key.bytes, timeout.value); }));
          },
          py::arg("key"), py::kw_only(), py::arg("timeout") = py::none(),
          "Waits for the key and returns its value; one round trip when the key exists.")
      .def(
          "add",
          [](StoreClient& self, Text key, std::int64_t amount, Timeout timeout) {
            return finish(without_gil([&] { return self.add(key.bytes, amount, timeout.value); }));
          },
          py::arg("key"), py::arg("amount"), py::kw_only(), py::arg("timeout") = py::none(),
          "Adds to a decimal counter, which begins at 0, and returns the sum. If the value is not\n"
          "a number, the server closes the connection: StoreUnavailable.")
      .def(
          "check",
          [](StoreClient& self, const TextSequence& keys, Timeout timeout) {
            return finish(without_gil([&] { return self.check(keys.items, timeout.value); }));
          },
          py::arg("keys"), py::kw_only(), py::arg("timeout") = py::none(),
          "Whether all keys exist. Does not wait.")
      .def(
          "wait",
          [](StoreClient& self, const TextSequence& keys, Timeout timeout) {
            finish(without_gil([&] { return self.wait(keys.items, timeout.value); }));
          },
          py::arg("keys"), py::arg("timeout") = py::none(), "Waits until all keys exist.")
      .def(
          "compare_set",
          [](StoreClient& self, Text key, Text expected, Text desired, Timeout timeout) {
            return finish_bytes(without_gil([&] {
              return self.compare_set(key.bytes, expected.bytes, desired.bytes, timeout.value);
            }));
          },
          py::arg("key"), py::arg("expected_value"), py::arg("desired_value"), py::kw_only(),
          py::arg("timeout") = py::none(),
          "Stores the desired value if the current one equals the expected one (missing key:\n"
          "empty). Returns the value after the call; for a missing key and a non-empty expected\n"
          "value it returns that expected value, as in torch.")
      .def(
          "append",
          [](StoreClient& self, Text key, Text value, Timeout timeout) {
            finish(without_gil([&] { return self.append(key.bytes, value.bytes, timeout.value); }));
          },
          py::arg("key"), py::arg("value"), py::kw_only(), py::arg("timeout") = py::none(),
          "Appends to the value; a missing key counts as empty. No reply, see set().")
      .def(
          "delete_key",
          [](StoreClient& self, Text key, Timeout timeout) {
            return finish(without_gil([&] { return self.delete_key(key.bytes, timeout.value); }));
          },
          py::arg("key"), py::kw_only(), py::arg("timeout") = py::none(),
          "Deletes the key and returns whether it existed.");
}

void bind_client_lists(py::class_<StoreClient>& client) {
  client
      .def(
          "multi_get",
          [](StoreClient& self, const TextSequence& keys, Timeout timeout) {
            const auto values =
                finish(without_gil([&] { return self.multi_get(keys.items, timeout.value); }));
            py::typing::List<py::bytes> list(values.size());
            for (std::size_t i = 0; i < values.size(); ++i) list[i] = py::bytes(values[i]);
            return list;
          },
          py::arg("keys"), py::kw_only(), py::arg("timeout") = py::none(),
          "Waits for all keys and returns their values in order.")
      .def(
          "multi_set",
          [](StoreClient& self, const TextSequence& keys, const TextSequence& values,
             Timeout timeout) {
            if (keys.items.size() != values.items.size()) {
              raise_status({StatusCode::kInvalidArgument, "multi_set: the number of keys is " +
                                                              std::to_string(keys.items.size()) +
                                                              ", that of values " +
                                                              std::to_string(values.items.size())});
            }
            finish(without_gil([&] {
              std::vector<std::pair<std::string, std::string>> items;
              items.reserve(keys.items.size());
              for (std::size_t i = 0; i < keys.items.size(); ++i) {
                items.emplace_back(keys.items[i], values.items[i]);
              }
              return self.multi_set(items, timeout.value);
            }));
          },
          py::arg("keys"), py::arg("values"), py::kw_only(), py::arg("timeout") = py::none(),
          "Stores each value under the key with the same index. No reply, see set().")
      .def(
          "num_keys",
          [](StoreClient& self, Timeout timeout) {
            return finish(without_gil([&] { return self.num_keys(timeout.value); }));
          },
          py::kw_only(), py::arg("timeout") = py::none(),
          "The number of keys in the server, including those that PyTorch's clients add.")
      .def(
          "list_keys",
          [](StoreClient& self, Timeout timeout) -> py::typing::List<py::str> {
            return to_names(finish(without_gil([&] { return self.list_keys(timeout.value); })));
          },
          py::kw_only(), py::arg("timeout") = py::none(), "The names of all keys, in no order.");
}

void bind_client_queues(py::class_<StoreClient>& client) {
  client
      .def(
          "queue_push",
          [](StoreClient& self, Text key, Text value, Timeout timeout) {
            finish(without_gil(
                [&] { return self.queue_push(key.bytes, value.bytes, timeout.value); }));
          },
          py::arg("key"), py::arg("value"), py::kw_only(), py::arg("timeout") = py::none(),
          "Appends the value to the queue of that name. No reply, see set().")
      .def(
          "queue_pop",
          [](StoreClient& self, Text key, bool block, Timeout timeout) {
            return finish_bytes(
                without_gil([&] { return self.queue_pop(key.bytes, block, timeout.value); }));
          },
          py::arg("key"), py::arg("block") = true, py::kw_only(), py::arg("timeout") = py::none(),
          "Removes and returns the queue's first element. With block it waits for one; without,\n"
          "an empty queue raises QueueEmpty.")
      .def(
          "queue_len",
          [](StoreClient& self, Text key, Timeout timeout) {
            return finish(without_gil([&] { return self.queue_len(key.bytes, timeout.value); }));
          },
          py::arg("key"), py::kw_only(), py::arg("timeout") = py::none(),
          "The number of elements in the queue.")
      .def(
          "barrier",
          [](StoreClient& self, Text key, std::int64_t world_size, Timeout timeout) {
            finish(without_gil([&] { return self.barrier(key.bytes, world_size, timeout.value); }));
          },
          py::arg("key"), py::arg("world_size"), py::kw_only(), py::arg("timeout") = py::none(),
          "Returns when world_size callers have arrived. Use each key for one barrier only.")
      .def(
          "ping",
          [](StoreClient& self, Timeout timeout) {
            finish(without_gil([&] { return self.ping(timeout.value); }));
          },
          py::kw_only(), py::arg("timeout") = py::none(),
          "One round trip; afterwards the server has handled all earlier calls of this client.");
}

void bind_client_life(py::class_<StoreClient>& client) {
  client
      .def(
          "clone",
          [](const StoreClient& self) { return finish(without_gil([&] { return self.clone(); })); },
          "A new client of the same server, with its own connections; works in a forked child.")
      .def(
          "close", [](StoreClient& self) { without_gil([&] { self.close(); }); },
          "Closes all connections. Blocked calls raise StoreError.")
      .def(
          "__enter__", [](StoreClient& self) -> StoreClient& { return self; },
          py::return_value_policy::reference)
      .def("__exit__",
           [](StoreClient& self, const py::args&) { without_gil([&] { self.close(); }); })
      .def_property_readonly("host", &StoreClient::host)
      .def_property_readonly("port", &StoreClient::port)
      .def_property(
          "timeout", [](const StoreClient& self) { return to_seconds(self.timeout()); },
          [](StoreClient& self, Timeout timeout) {
            if (!timeout.value) throw py::type_error("the timeout of a client must not be None");
            self.set_timeout(*timeout.value);
          },
          "The timeout, in seconds, of calls without a timeout of their own.")
      .def("__repr__", [](const StoreClient& self) {
        return "StoreClient('" + self.host() + "', " + std::to_string(self.port()) + ")";
      });
}

constexpr const char* kClientDoc =
    "A client of a TCPStore server: elastic's or PyTorch's.\n\n"
    "The constructor connects, and retries until its timeout while the server is unavailable.\n"
    "Keys and values are str (sent as UTF-8) or bytes. Each call takes at most `timeout` (seconds\n"
    "or a timedelta; None: the client's timeout) and then raises StoreTimeout; the client stays\n"
    "usable. Other errors: StoreUnavailable, StoreProtocolError, ConfigError (a key or value\n"
    "over the protocol's limits), StoreError (closed, or used in a forked "
    "child).\n\n"
    "Thread-safe: a blocked call delays no other call, and Python's signal handlers run during it.";

// The server's destructor joins a thread.
struct DeleteWithoutGil {
  void operator()(StoreServer* server) const {
    without_gil([&] { delete server; });
  }
};
using ServerHolder = std::unique_ptr<StoreServer, DeleteWithoutGil>;

ServerHolder start_server(const StoreServerOptions& options) {
  return ServerHolder(finish(without_gil([&] { return StoreServer::start(options); })).release());
}

void close(StoreServer& self, Duration drain) {
  without_gil([&] { self.close(drain); });
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
      .def("stats", &StoreServer::stats, py::call_guard<WithoutGil>())
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

void bind_store_client(py::module_& module) {
  py::class_<StoreClient> client(module, "StoreClient", kClientDoc);
  client.def(py::init(&connect), py::arg("host"), py::arg("port"),
             py::arg("timeout") = to_seconds(StoreClientOptions().timeout));
  bind_client_keys(client);
  bind_client_lists(client);
  bind_client_queues(client);
  bind_client_life(client);
}

}  // namespace elastic::bindings
