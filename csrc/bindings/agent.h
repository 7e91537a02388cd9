#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// Agent, its options, events and result, and the exit codes. After bind_worker_group() and
// bind_rendezvous_values().
void bind_agent(pybind11::module_& module);

}  // namespace elastic::bindings
