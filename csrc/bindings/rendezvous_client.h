#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// Adds RendezvousClient. Call it after bind_rendezvous_values().
void bind_rendezvous_client(pybind11::module_& module);

}  // namespace elastic::bindings
