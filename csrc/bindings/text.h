#pragma once

// Text between Python and C++, for every std::string of a signature or of a bound member.
//
// Names, messages and output come from other hosts and from programs of the user, so they may have
// any bytes: a conversion to Python never fails. Bytes that are no UTF-8 are shown as \\xff. The
// arguments and variables of Python may have such bytes, as surrogates; C++ gets them unchanged.
//
// Every file of the bindings includes this header, before it binds anything.

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace elastic::bindings {

// As text to read. Requires the GIL.
inline pybind11::str shown(std::string_view bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw pybind11::error_already_set();  // no memory
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

// Replaces the messages of calls with wrong arguments, which have the value of every argument, and
// so the variables of the workers and tokens. Call it when the module is complete.
void hide_arguments(const pybind11::module_& module);

}  // namespace elastic::bindings

namespace pybind11::detail {

template <>
struct type_caster<std::string> {
  PYBIND11_TYPE_CASTER(std::string, const_name("str"));

  bool load(handle source, bool) {
    if (PyBytes_Check(source.ptr())) {
      value = reinterpret_borrow<bytes>(source);
      return true;
    }
    if (!PyUnicode_Check(source.ptr())) return false;
    const auto encoded = reinterpret_steal<bytes>(
        PyUnicode_AsEncodedString(source.ptr(), "utf-8", "surrogateescape"));
    if (!encoded) throw error_already_set();  // a surrogate without a byte
    value = encoded;
    return true;
  }

  static handle cast(const std::string& source, return_value_policy /*policy*/, handle /*parent*/) {
    return elastic::bindings::shown(source).release();
  }
};

}  // namespace pybind11::detail
