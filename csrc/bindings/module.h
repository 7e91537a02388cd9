#pragma once

// The parts of elastic._C, in the order in which the module binds them: a function's types are
// bound before it. bind_errors() comes first (bindings/errors.h), bind_rendezvous_backends() before
// bind_rendezvous_values() (bindings/python_backend.h).

#include <pybind11/pybind11.h>

namespace elastic::bindings {

void bind_store_server(pybind11::module_& module);
void bind_store_client(pybind11::module_& module);
// WorkerGroup, WorkerCommand, WorkerEvent, WorkerExit and their enumerations.
void bind_worker_group(pybind11::module_& module);
// RendezvousOptions and JobResult with their enumerations; the functions about tokens and
// addresses.
void bind_rendezvous_values(pybind11::module_& module);
void bind_rendezvous_client(pybind11::module_& module);
// Agent, its options, events and result, and the exit codes.
void bind_agent(pybind11::module_& module);
void bind_observer(pybind11::module_& module);

}  // namespace elastic::bindings
