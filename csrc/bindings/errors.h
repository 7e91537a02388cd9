#pragma once

// Conversion of Status to Python exceptions, and the exception classes.
//
// The classes are created here, so that native calls raise them without an import; elastic.errors
// publishes them. Every function requires the GIL.

#include <pybind11/pybind11.h>

#include <utility>

#include "bindings/text.h"
#include "elastic/status.h"

namespace elastic::bindings {

// Which part of elastic a call belongs to: it selects, for example, StoreTimeout or
// RendezvousTimeout for the same status code.
enum class Domain : unsigned char { kGeneral, kStore, kRendezvous };

// Creates the exception classes as attributes of the module. Call it before any other bind_*.
void bind_errors(pybind11::module_& module);

// Raises the exception for `status`. REQUIRES: !status.ok().
// kCancelled raises the exception of the Python signal handler.
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

}  // namespace elastic::bindings
