#include "bindings/convert.h"

#include <initializer_list>
#include <string>
#include <string_view>

namespace py = pybind11;

namespace elastic::bindings {
namespace {

// Holds one reference to each class for the life of the process, as CPython does for its own.
struct ExceptionClasses {
  PyObject* elastic_error = nullptr;
  PyObject* config_error = nullptr;
  PyObject* store_error = nullptr;
  PyObject* store_timeout = nullptr;
  PyObject* store_unavailable = nullptr;
  PyObject* store_protocol_error = nullptr;
  PyObject* queue_empty = nullptr;
  PyObject* rendezvous_error = nullptr;
  PyObject* rendezvous_closed = nullptr;
  PyObject* rendezvous_timeout = nullptr;
  PyObject* rendezvous_unavailable = nullptr;
  PyObject* resource_exhausted = nullptr;
};

ExceptionClasses& classes() {
  static ExceptionClasses instance;
  return instance;
}

PyObject* make_class(py::module_& module, const char* name, const char* doc,
                     std::initializer_list<PyObject*> bases) {
  py::tuple base_tuple(bases.size());
  std::size_t index = 0;
  for (PyObject* base : bases) base_tuple[index++] = py::reinterpret_borrow<py::object>(base);
  // The module in the name is the public one: tracebacks show it, and pickle uses it.
  const std::string qualified = std::string("elastic.errors.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, base_tuple.ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  module.attr(name) = py::reinterpret_borrow<py::object>(made);
  return made;
}

PyObject* store_class(StatusCode code) {
  switch (code) {
    case StatusCode::kDeadlineExceeded: return classes().store_timeout;
    case StatusCode::kUnavailable: return classes().store_unavailable;
    case StatusCode::kPeerViolation: return classes().store_protocol_error;
    case StatusCode::kNotFound: return classes().queue_empty;
    default: return classes().store_error;
  }
}

PyObject* rendezvous_class(StatusCode code) {
  switch (code) {
    case StatusCode::kDeadlineExceeded: return classes().rendezvous_timeout;
    case StatusCode::kUnavailable: return classes().rendezvous_unavailable;
    case StatusCode::kAborted:
    case StatusCode::kFailedPrecondition: return classes().rendezvous_closed;
    default: return classes().rendezvous_error;
  }
}

PyObject* class_of(StatusCode code, Domain domain) {
  if (code == StatusCode::kInvalidArgument) return classes().config_error;
  switch (domain) {
    case Domain::kStore: return store_class(code);
    case Domain::kRendezvous: return rendezvous_class(code);
    case Domain::kGeneral: break;
  }
  if (code == StatusCode::kResourceExhausted) return classes().resource_exhausted;
  return classes().elastic_error;
}

// pybind11's entry point, which all bound functions have in common.
PyCFunction original = nullptr;

// Takes the values off the message of a TypeError that pybind11 has raised.
void hide_values() {
  constexpr std::string_view kMark = "\nInvoked with: ";
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return;
  py::error_already_set error;
  const std::string message = py::cast<std::string>(py::str(error.value()));
  const std::size_t end = message.find(kMark);
  if (end == std::string::npos) {
    error.restore();
    return;
  }
  PyErr_SetString(PyExc_TypeError, message.substr(0, end).c_str());
}

PyObject* call_fast(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  PyObject* result = reinterpret_cast<_PyCFunctionFastWithKeywords>(
      reinterpret_cast<void (*)()>(original))(self, arguments, count, names);
  if (result == nullptr) hide_values();
  return result;
}

PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  PyObject* result = reinterpret_cast<PyCFunctionWithKeywords>(
      reinterpret_cast<void (*)()>(original))(self, arguments, keywords);
  if (result == nullptr) hide_values();
  return result;
}

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// Weak point: only the first entry point that is met is replaced. If a version of pybind11 has a
// second one, a TypeError of the functions behind it still shows the arguments' values.
void wrap(const py::handle& object) {
  PyObject* function = object.ptr();
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  if (!PyCFunction_Check(function)) return;
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  const bool is_fast = definition->ml_flags == (METH_FASTCALL | METH_KEYWORDS);
  const PyCFunction ours = is_fast ? as_method(call_fast) : as_method(call);
  if (definition->ml_meth == ours) return;
  if (original == nullptr) original = definition->ml_meth;
  if (definition->ml_meth == original) definition->ml_meth = ours;
}

void wrap_members(const py::handle& owner) {
  for (const auto& [name, member] : py::dict(owner.attr("__dict__"))) {
    wrap(member);
    if (py::isinstance<py::type>(member)) wrap_members(member);
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  ExceptionClasses& all = classes();
  all.elastic_error =
      make_class(module, "ElasticError", "The base class of elastic's errors.", {PyExc_Exception});
  all.config_error =
      make_class(module, "ConfigError", "An invalid argument or option; also a ValueError.",
                 {all.elastic_error, PyExc_ValueError});
  all.store_error =
      make_class(module, "StoreError", "A call of a key-value store failed.", {all.elastic_error});
  all.store_timeout = make_class(module, "StoreTimeout",
                                 "The deadline of a store call passed; the client stays usable.",
                                 {all.store_error, PyExc_TimeoutError});
  all.store_unavailable =
      make_class(module, "StoreUnavailable",
                 "The server refused, reset or closed the connection; the next call reconnects.",
                 {all.store_error, PyExc_ConnectionError});
  all.store_protocol_error = make_class(module, "StoreProtocolError",
                                        "The peer is not a TCPStore server.", {all.store_error});
  all.queue_empty = make_class(module, "QueueEmpty", "queue_pop(block=False) found no element.",
                               {all.store_error, PyExc_LookupError});
  all.rendezvous_error = make_class(module, "RendezvousError",
                                    "The nodes could not agree on a round.", {all.elastic_error});
  all.rendezvous_closed =
      make_class(module, "RendezvousClosed", "The job has ended: no node can join it.",
                 {all.rendezvous_error});
  all.rendezvous_timeout =
      make_class(module, "RendezvousTimeout", "No round was complete before the join timeout.",
                 {all.rendezvous_error, PyExc_TimeoutError});
  all.rendezvous_unavailable =
      make_class(module, "RendezvousUnavailable",
                 "The coordinator, or the store that names it, could not be reached for too long.",
                 {all.rendezvous_error, PyExc_ConnectionError});
  all.resource_exhausted =
      make_class(module, "ResourceExhausted",
                 "The system has no file descriptor, process or memory left.", {all.elastic_error});
}

void raise_status(const Status& status, Domain domain) {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  PyErr_SetObject(class_of(status.code(), domain), shown(status.message()).ptr());
  throw py::error_already_set();
}

bool python_signal_raised() {
  const WithGil gil;
  return PyErr_CheckSignals() != 0;
}

void hide_arguments(const py::module_& module) {
  // The constructor of this class is always there, and all constructors share its entry point.
  wrap(module.attr("AgentOptions").attr("__dict__")["__init__"]);
  wrap_members(module);
}

}  // namespace elastic::bindings
