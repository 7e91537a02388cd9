#pragma once

// Conversions between Python's values and ours. Every function requires the GIL.

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <chrono>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "bindings/errors.h"
#include "bindings/text.h"
#include "elastic/time.h"

namespace elastic::bindings {

// Text for the operating system, as os.fsencode() returns it: undecodable bytes survive the round
// trip. Raises on a NUL, which arguments, variables and paths cannot contain.
inline std::string to_os(pybind11::handle text) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(text.ptr(), &encoded) == 0) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::bytes>(encoded);
}

inline pybind11::str from_os(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  if (decoded == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

using TextList = pybind11::typing::List<pybind11::str>;
using TextDict = pybind11::typing::Dict<pybind11::str, pybind11::str>;

inline std::vector<std::string> to_arguments(const TextList& list) {
  std::vector<std::string> arguments;
  arguments.reserve(list.size());
  for (const pybind11::handle item : list) arguments.push_back(to_os(item));
  return arguments;
}

// "NAME=value", in the order of the dictionary.
inline std::vector<std::string> to_environment(const TextDict& variables) {
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    environment.push_back(to_os(name) + "=" + to_os(value));
  }
  return environment;
}

// Converts a time in seconds.
inline Duration to_duration(double seconds) {
  if (std::isnan(seconds)) {
    raise_status({StatusCode::kInvalidArgument, "a time in seconds must not be NaN"});
  }
  return from_seconds(seconds);
}

// nullopt, None in Python: no limit.
inline Instant to_deadline(std::optional<Duration> timeout) {
  if (!timeout) return Instant::max();
  // On Linux steady_clock is CLOCK_MONOTONIC, the clock of Instant.
  const Instant now(std::chrono::steady_clock::now().time_since_epoch());
  return add_saturating(now, *timeout);
}

// Gives a bound class a __repr__ of the form <Name field=value ...>, from its readable properties.
template <typename Type>
void show_fields(std::initializer_list<const char*> names) {
  const std::vector<std::string> fields(names.begin(), names.end());
  const pybind11::type bound = pybind11::type::of<Type>();
  const auto show = [fields](const pybind11::object& self) {
    std::string text = "<" + pybind11::cast<std::string>(pybind11::type::of(self).attr("__name__"));
    for (const std::string& field : fields) {
      text += " " + field + "=" + std::string(pybind11::repr(self.attr(field.c_str())));
    }
    return text + ">";
  };
  bound.attr("__repr__") =
      pybind11::cpp_function(show, pybind11::name("__repr__"), pybind11::is_method(bound));
}

// A member of a member: at(object, &Type::part, &Part::member).
template <typename Object>
Object& at(Object& object) {
  return object;
}
template <typename Object, typename First, typename... Rest>
auto& at(Object& object, First first, Rest... rest) {
  return at(object.*first, rest...);
}

// A property: a member of a member.
template <typename Object, typename Part, typename... Path>
auto getter(Part Object::*first, Path... rest) {
  return [=](const Object& self) { return at(self, first, rest...); };
}

// A property: a member that is text for the operating system.
template <typename Object>
auto os_getter(std::string Object::*member) {
  return [member](const Object& self) { return from_os(self.*member); };
}

}  // namespace elastic::bindings

namespace pybind11::detail {

// Python has times in seconds.
template <>
struct type_caster<elastic::Duration> {
  PYBIND11_TYPE_CASTER(elastic::Duration, const_name("float"));

  bool load(handle source, bool convert) {
    make_caster<double> seconds;
    if (!seconds.load(source, convert)) return false;
    value = elastic::bindings::to_duration(cast_op<double>(seconds));
    return true;
  }
  static handle cast(elastic::Duration duration, return_value_policy /*policy*/,
                     handle /*parent*/) {
    return PyFloat_FromDouble(elastic::to_seconds(duration));
  }
};

// In the time of time.monotonic().
template <>
struct type_caster<elastic::Instant> {
  static constexpr auto name = const_name("float");
  static handle cast(elastic::Instant instant, return_value_policy /*policy*/, handle /*parent*/) {
    return PyFloat_FromDouble(elastic::to_seconds(instant.time_since_epoch()));
  }
};

}  // namespace pybind11::detail
