#pragma once

#include <pybind11/pybind11.h>

namespace elastic::bindings {

// WorkerGroup, WorkerCommand, WorkerEvent, WorkerExit and their enumerations. After bind_errors().
void bind_worker_group(pybind11::module_& module);

}  // namespace elastic::bindings
