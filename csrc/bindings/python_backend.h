#pragma once

// A RendezvousBackend that is a Python object, of any class that has torch's three members: `name`,
// `get_state() -> (bytes, token) | None` and
// `set_state(bytes, token=None) -> (bytes, token, was_set) | None`.

#include <pybind11/pybind11.h>

#include <memory>

#include "elastic/rendezvous_backend.h"

namespace elastic::bindings {

// `object` is a native backend, or is called as one, with the GIL and only for the calls. What
// those raise is taken for a store that is not there now; a TypeError, AttributeError and the like
// for a fault of the class. Wants the GIL.
std::shared_ptr<RendezvousBackend> to_backend(const pybind11::object& object);

// Adds RendezvousBackend and the functions that make those of elastic. Before what takes one.
void bind_rendezvous_backends(pybind11::module_& module);

}  // namespace elastic::bindings
