#pragma once

// How a thread takes the interpreter's lock. Before 3.14 CPython calls pthread_exit() there if the
// interpreter is ending; such a thread waits here until the process ends, as since 3.14.

#include <Python.h>

namespace elastic::bindings {

// PyEval_RestoreThread().
void restore_thread(PyThreadState* state);
// PyGILState_Ensure().
PyGILState_STATE ensure_gil();

}  // namespace elastic::bindings
