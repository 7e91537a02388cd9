#pragma once

// Conversions between Python's values and ours: exceptions for Status, text, arguments, times; and
// what the classes of elastic._C have in common. Every file of the bindings includes this header,
// before it binds anything. Every function requires the GIL, unless it says that it acquires it.
//
// Names, messages and output come from other hosts and from programs of the user, so they may have
// any bytes: a conversion of a std::string to Python never fails. Bytes that are no UTF-8 are shown
// as \xff. The arguments and variables of Python may have such bytes, as surrogates; C++ gets them
// unchanged.
//
// The classes of the exceptions are created here, so that native calls raise them without an
// import; elastic.errors publishes them.

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <chrono>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/interpreter_end.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::bindings {

// Which part of elastic a call belongs to: it selects, for example, StoreTimeout or
// RendezvousTimeout for the same status code.
enum class Domain : unsigned char { kGeneral, kStore, kRendezvous };

// Creates the exception classes as attributes of the module. Call it before any other bind_*.
void bind_errors(pybind11::module_& module);

// Raises the exception for `status`. REQUIRES: !status.ok().
// If the handler of a signal has raised an exception meanwhile, that one is raised instead.
[[noreturn]] void raise_status(const Status& status, Domain domain = Domain::kGeneral);

inline void check(const Status& status, Domain domain = Domain::kGeneral) {
  if (!status.ok()) raise_status(status, domain);
}

template <typename T>
T unwrap(Result<T> result, Domain domain = Domain::kGeneral) {
  if (!result.ok()) raise_status(result.status(), domain);
  return *std::move(result);
}

// The interrupt check for blocking calls from Python: runs the handlers of signals that have
// arrived and returns whether one of them raised. Acquires the GIL. The exception stays set in the
// calling thread until raise_status() raises it.
bool python_signal_raised();

// Other threads of Python run while it exists. If the interpreter ends meanwhile, the thread stays
// in the destructor, where pybind11's class ends the process before CPython 3.14.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { restore_thread(state_); }

 private:
  PyThreadState* const state_;
};

// The same for a thread of any kind that calls Python: it stays in the constructor.
class WithGil {
 public:
  WithGil() : state_(ensure_gil()) {}
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  const PyGILState_STATE state_;
};

// Returns call(), during which other threads of Python run: for calls that can block.
template <typename Call>
auto without_gil(Call&& call) {
  const WithoutGil release;
  return call();
}

// As text to read.
inline pybind11::str shown(std::string_view bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw pybind11::error_already_set();  // no memory
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

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

}  // namespace elastic::bindings

namespace pybind11::detail {

// For every std::string of a signature or of a bound member.
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

namespace elastic::bindings {

// Replaces the messages of calls with wrong arguments, which have the value of every argument, and
// so the variables of the workers and tokens. Call it when the module is complete.
void hide_arguments(const pybind11::module_& module);

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
