#pragma once

// A RendezvousBackend implemented by a Python object of any class with torch's three members:
// `name`, `get_state() -> (bytes, token) | None` and `set_state(bytes, token=None) -> (bytes,
// token, was_set) | None`.

#include <pybind11/pybind11.h>

#include <memory>

#include "elastic/rendezvous_backend.h"

namespace elastic::bindings {

// `object` is a native backend, or a Python object whose methods are called with the GIL. Their
// exceptions mean that the store is unavailable, except a TypeError, AttributeError and the like,
// which are programming errors. Requires the GIL.
std::shared_ptr<RendezvousBackend> to_backend(const pybind11::object& object);

// Adds RendezvousBackend and the functions that create elastic's backends. Call it before the
// functions that bind users of a backend.
void bind_rendezvous_backends(pybind11::module_& module);

}  // namespace elastic::bindings
