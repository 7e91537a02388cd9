// elastic._collectives: the thread that reads torch's flight recorder. Apart from elastic._worker,
// because it needs the C++ runtime: only a process with torch, which has it, loads this.

#include <Python.h>

#include "worker/flight_recorder.h"

namespace {

PyObject* watch(PyObject* /*module*/, PyObject* arguments) {
  PyObject* capsule = nullptr;
  const char* members = nullptr;
  if (PyArg_ParseTuple(arguments, "Os", &capsule, &members) == 0) return nullptr;
  void* const page = PyCapsule_GetPointer(capsule, "elastic._worker.page");
  if (page == nullptr) return nullptr;
  const auto announce = reinterpret_cast<void (*)()>(PyCapsule_GetContext(capsule));
  return PyBool_FromLong(
      elastic::worker::watch_collectives(static_cast<elastic_worker_page*>(page), members, announce)
          ? 1
          : 0);
}

PyMethodDef functions[] = {
    {"watch", watch, METH_VARARGS,
     "watch(page, members)\n--\n\nPublishes which collective operation this process waits in, in "
     "the page of\nelastic._worker. `members`: a line for each process group, its name, a tab and "
     "its ranks."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "elastic._collectives",
                                 "Which collective operation a worker waits in.",
                                 0,
                                 functions,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__collectives() {
  PyObject* const module = PyModule_Create(&module_definition);
#ifdef Py_GIL_DISABLED
  if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
