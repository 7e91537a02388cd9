#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// Call it after bind_errors().
void bind_store_server(pybind11::module_& module);
void bind_store_client(pybind11::module_& module);

}  // namespace elastic::bindings
