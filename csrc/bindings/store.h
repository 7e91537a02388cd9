#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// StoreServer and StoreClient. After bind_errors().
void bind_store(pybind11::module_& module);

}  // namespace elastic::bindings
