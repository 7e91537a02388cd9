#pragma once

// Status to Python exception, in one place, and the exception classes themselves.
//
// The classes are made here, so that native calls raise them without an import; elastic.errors
// gives them their public home. Every function wants the GIL.

#include <pybind11/pybind11.h>

#include <utility>

#include "elastic/status.h"

namespace elastic::bindings {

// Which part of elastic a call belongs to: it decides between, say, StoreTimeout and
// RendezvousTimeout for the same status code.
enum class Domain : unsigned char { kGeneral, kStore, kRendezvous };

// Creates the exception classes as attributes of the module. Before any other bind_*.
void bind_errors(pybind11::module_& module);

// Raises the exception that stands for `status`. REQUIRES: !status.ok().
// kCancelled raises what the Python signal handler raised.
[[noreturn]] void raise_status(const Status& status, Domain domain = Domain::kGeneral);

inline void check(const Status& status, Domain domain = Domain::kGeneral) {
  if (!status.ok()) raise_status(status, domain);
}

template <typename T>
T unwrap(Result<T> result, Domain domain = Domain::kGeneral) {
  if (!result.ok()) raise_status(result.status(), domain);
  return *std::move(result);
}

// The interrupt check that blocking calls take from Python: runs the handlers of signals that have
// arrived and says whether one of them raised. Takes the GIL itself. The exception stays set in the
// calling thread until raise_status() finds it there.
bool python_signal_raised();

}  // namespace elastic::bindings
