// elastic._C.RendezvousBackend, and its implementation by Python objects.

#include <pybind11/stl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bindings/convert.h"
#include "bindings/module.h"
#include "elastic/rendezvous_backend.h"
#include "os/loop/clock.h"
#include "os/loop/thread.h"

namespace py = pybind11;

namespace elastic::bindings {
namespace {

constexpr std::string_view kStateErrorName = "RendezvousStateError";  // torch's or ours
constexpr std::string_view kOwnErrorName = "ElasticError";

// Whether the exception is a programming error in the backend's class: a retry does not help.
bool is_fault_of_the_class(const py::error_already_set& error) {
  for (PyObject* kind : {PyExc_TypeError, PyExc_AttributeError, PyExc_NameError, PyExc_ImportError,
                         PyExc_SyntaxError}) {
    if (error.matches(kind)) return true;
  }
  return false;
}

bool is_derived_from(const py::error_already_set& error, std::string_view name) {
  for (const py::handle base : py::tuple(error.type().attr("__mro__"))) {
    if (py::cast<std::string>(base.attr("__name__")) == name) return true;
  }
  return false;
}

// Without the traceback, which what() has. The errors of this project are sentences that name the
// store; others get its name and their type.
std::string text_of(const py::error_already_set& error, const std::string& store) {
  std::string text;
  try {
    text = py::cast<std::string>(py::str(error.value()));
  } catch (const py::error_already_set&) {  // its __str__ fails
  }
  if (!text.empty() && is_derived_from(error, kOwnErrorName)) return text;
  const auto type = py::cast<std::string>(error.type().attr("__name__"));
  return store + ": " + type + (text.empty() ? "" : ": " + text);
}

std::string_view view_of(const py::bytes& bytes) { return bytes; }

// Calls wait_for_change() of the class on a thread of its own, so that a wait of the rendezvous can
// end at any time without the interpreter lock. The call that it has left continues until its
// timeout.
//
// Lock order: the interpreter lock, then mutex_.
class PythonWatch : public std::enable_shared_from_this<PythonWatch> {
 public:
  explicit PythonWatch(py::object object) : object_(std::move(object)) {}

  // As wait_for_change(). False, from then on: the class has raised an exception.
  bool wait(const py::object& token, Instant deadline) {
    token_ = token;
    const WithoutGil release;
    std::unique_lock lock(mutex_);
    if (!thread_ && !has_failed_) {
      auto thread = os::DetachableThread::start("elastic-watch",
                                                [self = shared_from_this()] { self->run(); });
      has_failed_ = !thread.ok();
      if (thread.ok()) thread_.emplace(*std::move(thread));
    }
    if (has_failed_) return false;
    deadline_ = deadline;
    changed_.notify_all();
    const std::uint64_t before = num_returned_;
    changed_.wait_for(lock, deadline - os::monotonic_now(),
                      [&] { return was_interrupted_ || has_failed_ || num_returned_ != before; });
    was_interrupted_ = false;
    deadline_.reset();
    return !has_failed_;
  }

  // Without the interpreter lock.
  void interrupt() {
    const std::lock_guard lock(mutex_);
    was_interrupted_ = true;
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }

  // The interpreter has ended.
  void forget() {
    static_cast<void>(object_.release());
    static_cast<void>(token_.release());
  }

 private:
  // A class that does not wait is called no more often.
  static constexpr Duration kIntervalMin = std::chrono::milliseconds(10);

  void run() {
    while (call_once()) {
    }
    const WithGil gil;
    object_ = token_ = py::object();
  }

  bool call_once() {
    Instant deadline;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_stopped_ || deadline_; });
      if (is_stopped_) return false;
      deadline = *deadline_;
    }
    const Instant began = os::monotonic_now();
    const bool is_ok = call(std::chrono::duration<double>(deadline - began).count());
    std::unique_lock lock(mutex_);
    const Duration left = kIntervalMin - (os::monotonic_now() - began);
    changed_.wait_for(lock, left, [&] { return is_stopped_; });
    has_failed_ = !is_ok;
    ++num_returned_;
    changed_.notify_all();
    return is_ok && !is_stopped_;
  }

  bool call(double timeout) {
    const WithGil gil;
    try {
      object_.attr("wait_for_change")(token_, timeout);
      return true;
    } catch (py::error_already_set&) {
      return false;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  py::object object_;                           // with the interpreter lock, as is token_
  py::object token_ = py::none();               // of the wait that began last
  std::optional<Instant> deadline_;             // of the wait that is under way; guarded by mutex_
  std::uint64_t num_returned_ = 0;              // guarded
  bool was_interrupted_ = false;                // guarded
  bool has_failed_ = false;                     // guarded
  bool is_stopped_ = false;                     // guarded
  std::optional<os::DetachableThread> thread_;  // guarded
};

class PythonBackend final : public RendezvousBackend {
 public:
  explicit PythonBackend(py::object object)
      : object_(std::move(object)), name_(py::cast<std::string>(py::str(object_.attr("name")))) {
    for (const char* method : {"get_state", "set_state"}) {
      if (!py::hasattr(object_, method)) {
        throw py::type_error("a rendezvous backend needs a method " + std::string(method) +
                             "(): " + std::string(py::repr(object_)) + " has none");
      }
    }
    if (py::hasattr(object_, "wait_for_change")) watch_ = std::make_shared<PythonWatch>(object_);
  }
  ~PythonBackend() override {
    if (watch_ != nullptr) watch_->stop();
    if (Py_IsInitialized() == 0) {
      if (watch_ != nullptr) watch_->forget();
      static_cast<void>(object_.release());
      for (auto& [number, token] : tokens_) static_cast<void>(token.release());
      return;
    }
    const WithGil gil;
    watch_.reset();
    object_ = py::object();
    tokens_.clear();
  }

  std::string name() const override { return name_; }

  Result<std::optional<StoredState>> get_state() override {
    const WithGil gil;
    try {
      const py::object answer = object_.attr("get_state")();
      if (answer.is_none()) return std::optional<StoredState>();
      const auto [bytes, token] = py::cast<std::pair<py::bytes, py::object>>(answer);
      return std::optional(StoredState{std::string(bytes), remember(token)});
    } catch (py::error_already_set& error) {
      return status_of(error);
    } catch (const py::cast_error&) {
      return not_understood("get_state", "(bytes, token) or None");
    }
  }

  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    const WithGil gil;
    try {
      const py::object answer =
          object_.attr("set_state")(py::bytes(bytes.data(), bytes.size()), recall(token));
      if (answer.is_none()) return read_after_write(bytes);
      const auto [now, its_token, was_set] =
          py::cast<std::tuple<py::bytes, py::object, py::object>>(answer);
      return StoredWrite{py::bool_(was_set), {std::string(view_of(now)), remember(its_token)}};
    } catch (py::error_already_set& error) {
      return status_of(error);
    } catch (const py::cast_error&) {
      return not_understood("set_state", "(bytes, token, bool) or None");
    }
  }

  bool wait_for_change(const std::optional<std::string>& token, Instant deadline) override {
    if (watch_ == nullptr) return false;
    const WithGil gil;
    return watch_->wait(recall(token), deadline);
  }
  void interrupt() override {
    if (watch_ != nullptr) watch_->interrupt();
  }

 private:
  // Without an answer from set_state() only the stored bytes show whether it replaced them. No two
  // states are equal.
  Result<StoredWrite> read_after_write(std::string_view bytes) {
    Result<std::optional<StoredState>> stored = get_state();
    if (!stored.ok()) return stored.status();
    if (!*stored) {
      return Status(StatusCode::kUnavailable,
                    name_ + ": set_state() returned None, and nothing is stored");
    }
    return StoredWrite{(*stored)->bytes == bytes, **std::move(stored)};
  }
  Status status_of(const py::error_already_set& error) const {
    StatusCode code = StatusCode::kUnavailable;
    if (is_fault_of_the_class(error)) code = StatusCode::kInternal;
    // The stored state cannot be read.
    if (is_derived_from(error, kStateErrorName)) code = StatusCode::kPeerViolation;
    return {code, text_of(error, name_)};
  }
  Status not_understood(const char* method, const char* expected) const {
    return {StatusCode::kInternal, name_ + ": " + method + "() must return " + expected};
  }

  // A token is any object; the rendezvous identifies it by a number. Only the last few tokens are
  // kept. An equal token has the same number: the state has not changed.
  std::string remember(const py::object& token) {
    for (const auto& [number, known] : tokens_) {
      if (known.is(token) || known.equal(token)) return std::to_string(number);
    }
    tokens_.emplace_back(++last_number_, token);
    if (tokens_.size() > kTokensMax) tokens_.pop_front();
    return std::to_string(last_number_);
  }
  py::object recall(const std::optional<std::string>& name) const {
    for (const auto& [number, token] : tokens_) {
      if (name && *name == std::to_string(number)) return token;
    }
    return py::none();
  }

  static constexpr std::size_t kTokensMax = 8;

  py::object object_;
  const std::string name_;
  std::deque<std::pair<std::uint64_t, py::object>> tokens_;
  std::uint64_t last_number_ = 0;
  std::shared_ptr<PythonWatch> watch_;  // null: the class has no wait_for_change()
};

using Backend = RendezvousBackend;

std::optional<std::pair<py::bytes, py::bytes>> get_state(Backend& self) {
  auto stored = without_gil([&] { return self.get_state(); });
  const std::optional<StoredState> state = unwrap(std::move(stored), Domain::kRendezvous);
  if (!state) return std::nullopt;
  return std::pair(py::bytes(state->bytes), py::bytes(state->token));
}

std::optional<std::tuple<py::bytes, py::bytes, bool>> set_state(Backend& self,
                                                                const py::bytes& state,
                                                                const py::object& token) {
  if (!token.is_none() && !py::isinstance<py::bytes>(token)) {
    // No version has such a token, so that it cannot be the current one.
    const auto stored = get_state(self);
    if (!stored) return std::nullopt;
    return std::tuple(stored->first, stored->second, false);
  }
  const std::string bytes = state;
  std::optional<std::string> version;
  if (!token.is_none()) version = std::string(py::bytes(token));
  auto answer = without_gil([&] { return self.set_state(bytes, version); });
  const StoredWrite write = unwrap(std::move(answer), Domain::kRendezvous);
  return std::tuple(py::bytes(write.now.bytes), py::bytes(write.now.token), write.was_set);
}

}  // namespace

std::shared_ptr<RendezvousBackend> to_backend(const py::object& object) {
  if (py::isinstance<Backend>(object)) return py::cast<std::shared_ptr<Backend>>(object);
  return std::make_shared<PythonBackend>(object);
}

void bind_rendezvous_backends(py::module_& module) {
  auto backend =
      py::class_<Backend, std::shared_ptr<Backend>>(
          module, "RendezvousBackend",
          "A store that keeps the record of a job, with an atomic compare-and-set. The backends "
          "of\n"
          "elastic are native; any Python object with the same members can be used instead.")
          .def_property_readonly("name", &Backend::name)
          .def("get_state", &get_state,
               "(bytes, token) of the stored state, None if there is none. The token identifies "
               "this\n"
               "version.")
          .def("set_state", &set_state, py::arg("state"), py::arg("token") = py::none(),
               "Replaces the state if its token matches (None: only if nothing is stored). Returns "
               "the\n"
               "stored state, its token, and whether this call stored it.");
  show_fields<Backend>({"name"});
  const StoreBackendOptions store;
  module.def(
      "store_backend",
      [](std::string host, std::uint16_t port, std::string run_id, Duration timeout) {
        return make_store_backend({std::move(host), port, std::move(run_id), timeout});
      },
      py::arg("host"), py::arg("port"), py::arg("run_id"), py::kw_only(),
      py::arg("timeout") = store.call_timeout,
      "A record in one key of a TCPStore server, PyTorch's or elastic's. Connects at the first\n"
      "call.");
  const FileBackendOptions file;
  module.def(
      "file_backend",
      [](const py::str& path, std::string run_id, Duration timeout) {
        return make_file_backend({to_os(path), std::move(run_id), timeout});
      },
      py::arg("path"), py::arg("run_id"), py::kw_only(), py::arg("timeout") = file.call_timeout,
      "A record in the file <path>.<run_id>, which all nodes share.");
  module.def(
      "find_coordinator",
      [](const py::object& store) {
        const std::shared_ptr<Backend> native = to_backend(store);
        auto found = without_gil([&] { return find_coordinator(native.get()); });
        using Found = std::optional<std::string>;
        if (found.status().code() == StatusCode::kNotFound) return Found();
        return Found(unwrap(std::move(found), Domain::kRendezvous));
      },
      py::arg("store"),
      "HOST:PORT at which the coordinator of the job in this store accepts sessions; \"\": no\n"
      "process coordinates it now; None: the store has no record of such a job.");
}

}  // namespace elastic::bindings
