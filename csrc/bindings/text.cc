#include "bindings/text.h"

#include <string>

namespace py = pybind11;

namespace elastic::bindings {
namespace {

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

void hide_arguments(const py::module_& module) {
  // The constructor of this class is always there, and all constructors share its entry point.
  wrap(module.attr("AgentOptions").attr("__dict__")["__init__"]);
  wrap_members(module);
}

}  // namespace elastic::bindings
