#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// Adds RendezvousClient. After RendezvousOptions.
void bind_rendezvous_client(pybind11::module_& module);

}  // namespace elastic::bindings
