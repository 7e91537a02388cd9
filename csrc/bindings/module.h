#pragma once

// The parts of elastic._C, in the order in which the module binds them: a function's types are
// bound before it. bind_errors() comes first, and hide_arguments() last (bindings/convert.h).
// Requires the GIL.

#include <pybind11/pybind11.h>

#include <memory>

#include "elastic/rendezvous_backend.h"

namespace elastic::bindings {

void bind_store_server(pybind11::module_& module);
void bind_store_client(pybind11::module_& module);
// WorkerGroup, WorkerCommand, WorkerEvent, WorkerExit and their enumerations.
void bind_worker_group(pybind11::module_& module);
// RendezvousBackend, and the functions that create elastic's backends.
void bind_rendezvous_backends(pybind11::module_& module);
// RendezvousOptions and JobResult with their enumerations; the functions about tokens and
// addresses.
void bind_rendezvous_values(pybind11::module_& module);
void bind_rendezvous_client(pybind11::module_& module);
// Agent, its options, events and result, and the exit codes.
void bind_agent(pybind11::module_& module);
void bind_observer(pybind11::module_& module);

// `object` is a native backend, or a Python object of any class with torch's three members: `name`,
// `get_state() -> (bytes, token) | None` and `set_state(bytes, token=None) -> (bytes, token,
// was_set) | None`. Its methods are called with the GIL. Their exceptions mean that the store is
// unavailable, except a TypeError, AttributeError and the like, which are programming errors.
std::shared_ptr<RendezvousBackend> to_backend(const pybind11::object& object);

}  // namespace elastic::bindings
