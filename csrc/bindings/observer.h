#pragma once

// elastic._C.Observer.

#include <pybind11/pybind11.h>

namespace elastic::bindings {

void bind_observer(pybind11::module_& module);

}  // namespace elastic::bindings
