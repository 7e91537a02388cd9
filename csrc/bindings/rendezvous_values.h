#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// Adds RendezvousOptions and JobResult with their enumerations. Call it before functions that use
// them.
void bind_rendezvous_values(pybind11::module_& module);

}  // namespace elastic::bindings
