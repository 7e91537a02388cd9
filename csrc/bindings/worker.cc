// elastic._worker: the fast calls of elastic.worker. Python's C interface and nothing else, so that
// a script can import it in less than a millisecond.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "elastic/worker.h"
#include "elastic/worker_snapshot.h"

// Theory of operation of the stacks. faulthandler writes the stacks of all threads in a signal
// handler of its own, without the GIL. offer_stacks() puts a handler before it, which checks that
// the descriptor is still the channel's (a script may have closed it, and opened a file of its own)
// and reports the end of the text.
//
// In a free-threaded interpreter the module does not turn the GIL on. Steps are atomic words of the
// page, and may be reported by any thread. The library's other functions that change state are for
// one thread at a time: there they run in a critical section of the module, which is what the GIL
// is elsewhere.

#if PY_VERSION_HEX < 0x030D0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

namespace {

constexpr int kWaitMs = 1000;

// How many real-time signals are tried: another library may use some.
constexpr int kSignalsTried = 16;

void (*write_stacks)(int) = nullptr;
bool is_stopping = false;  // should_stop() has returned true

void on_request(int number) {
  if (elastic_worker_owns_stacks_descriptor() == 0) return;
  if (write_stacks != nullptr) write_stacks(number);
  elastic_worker_stacks_written();
}

bool read_step(PyObject* object, std::int64_t* step) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) return false;
  if (value < 0) {
    PyErr_Format(PyExc_ValueError, "the step is %lld: expected 0 or more", value);
    return false;
  }
  *step = value;
  return true;
}

void begin_reports([[maybe_unused]] PyObject* module) {
  Py_BEGIN_CRITICAL_SECTION(module);
  if (elastic_worker_is_reporting == 0) elastic_worker_begin_reports();
  Py_END_CRITICAL_SECTION();
}

PyObject* progress(PyObject* /*module*/, PyObject* argument) {
  std::int64_t step = 0;
  if (!read_step(argument, &step)) return nullptr;
  elastic_worker_progress(step);
  Py_RETURN_NONE;
}

PyObject* count(PyObject* /*module*/, PyObject* argument) {
  std::int64_t step = 0;
  if (!read_step(argument, &step)) return nullptr;
  elastic_worker_count(step);
  Py_RETURN_NONE;
}

PyObject* should_stop(PyObject* module, PyObject* argument) {
  std::int64_t step = 0;
  if (!read_step(argument, &step)) return nullptr;
  __atomic_store_n(&elastic_worker_page_in_use->step, step, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&elastic_worker_is_reporting, __ATOMIC_RELAXED) == 0) begin_reports(module);
  const std::int64_t stop =
      __atomic_load_n(&elastic_worker_page_in_use->tentative_stop, __ATOMIC_SEQ_CST);
  if (stop == ELASTIC_WORKER_NO_STEP || step < stop) Py_RETURN_FALSE;
  while (true) {
    int decided = 0;
    Py_BEGIN_ALLOW_THREADS;
    decided = elastic_worker_wait_for_stop(step, kWaitMs);
    Py_END_ALLOW_THREADS;
    if (decided > 0) __atomic_store_n(&is_stopping, true, __ATOMIC_RELAXED);
    if (decided >= 0) return PyBool_FromLong(decided);
    if (PyErr_CheckSignals() != 0) return nullptr;
  }
}

PyObject* has_stopped(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyBool_FromLong(static_cast<long>(__atomic_load_n(&is_stopping, __ATOMIC_RELAXED)));
}

// The text; None: this process is not being stopped.
PyObject* stop_reason(PyObject* /*module*/, PyObject* /*unused*/) {
  char text[ELASTIC_WORKER_STOP_REASON_BYTES];
  if (elastic_worker_stop_reason(text, sizeof text) == 0) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace");
}

PyObject* enter([[maybe_unused]] PyObject* module, PyObject* arguments) {
  PyObject* name = nullptr;
  double limit = 0;
  if (PyArg_ParseTuple(arguments, "Ud", &name, &limit) == 0) return nullptr;
  if (!(limit >= 0) || limit > 1e9) {
    PyErr_SetString(PyExc_ValueError, "the limit of a section must be 0 or more seconds");
    return nullptr;
  }
  // A name may come from a file name or other bytes: it is shown, and fails no training.
  PyObject* const text = PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace");
  if (text == nullptr) return nullptr;
  Py_BEGIN_CRITICAL_SECTION(module);
  elastic_worker_enter(PyBytes_AS_STRING(text), std::llround(limit * 1e3));
  Py_END_CRITICAL_SECTION();
  Py_DECREF(text);
  Py_RETURN_NONE;
}

PyObject* leave([[maybe_unused]] PyObject* module, PyObject* /*unused*/) {
  Py_BEGIN_CRITICAL_SECTION(module);
  elastic_worker_leave();
  Py_END_CRITICAL_SECTION();
  Py_RETURN_NONE;
}

PyObject* open([[maybe_unused]] PyObject* module, PyObject* /*unused*/) {
  int is_open = 0;
  Py_BEGIN_CRITICAL_SECTION(module);
  is_open = elastic_worker_open();
  Py_END_CRITICAL_SECTION();
  return PyBool_FromLong(is_open);
}

PyObject* round(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyLong_FromUnsignedLongLong(elastic_worker_round());
}

PyObject* is_restart(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyBool_FromLong(elastic_worker_is_restart());
}

PyObject* join_membership(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyBool_FromLong(elastic_worker_join_membership());
}

PyObject* round_is_over(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyBool_FromLong(elastic_worker_round_is_over());
}

// Without a check for signals: it is called by a thread that is not the main one.
PyObject* wait_until_over(PyObject* /*module*/, PyObject* argument) {
  const double seconds = PyFloat_AsDouble(argument);
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
  const auto wait_ms = static_cast<int>(std::clamp<double>(std::ceil(seconds * 1e3), 0, kWaitMs));
  int is_over = 0;
  Py_BEGIN_ALLOW_THREADS;
  is_over = elastic_worker_wait_until_over(wait_ms);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(is_over);
}

PyObject* begin_sockets(PyObject* /*module*/, PyObject* /*unused*/) {
  Py_BEGIN_ALLOW_THREADS;
  elastic_worker_begin_sockets();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* end_sockets(PyObject* /*module*/, PyObject* argument) {
  const long port = PyLong_AsLong(argument);
  if (port == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (port < 0 || port > UINT16_MAX) {
    PyErr_Format(PyExc_ValueError, "the port is %ld: expected 0 to 65535", port);
    return nullptr;
  }
  Py_BEGIN_ALLOW_THREADS;
  elastic_worker_end_sockets_to(static_cast<uint16_t>(port));
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* leave_round(PyObject* /*module*/, PyObject* /*unused*/) {
  elastic_worker_leave_round();
  Py_RETURN_NONE;
}

double monotonic_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// The variables; None: not within `seconds`. Negative: without a limit.
PyObject* wait_for_round(PyObject* /*module*/, PyObject* argument) {
  const double seconds = PyFloat_AsDouble(argument);
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
  const double deadline = monotonic_ms() + seconds * 1e3;
  PyObject* variables = PyBytes_FromStringAndSize(nullptr, ELASTIC_WORKER_ROUND_BYTES);
  if (variables == nullptr) return nullptr;
  while (true) {
    const double left = seconds < 0 ? kWaitMs : std::ceil(deadline - monotonic_ms());
    const auto wait_ms = static_cast<int>(std::clamp<double>(left, 0, kWaitMs));
    int bytes = 0;
    Py_BEGIN_ALLOW_THREADS;
    bytes = elastic_worker_wait_for_round(PyBytes_AS_STRING(variables), ELASTIC_WORKER_ROUND_BYTES,
                                          wait_ms);
    Py_END_ALLOW_THREADS;
    if (bytes > 0) {
      _PyBytes_Resize(&variables, bytes);
      return variables;
    }
    if (bytes < 0) {
      PyErr_SetString(PyExc_RuntimeError,
                      "there is no next round: the launcher has ended, or this process has closed "
                      "the descriptors of its channel");
    }
    if (bytes < 0 || PyErr_CheckSignals() != 0 || left <= 0) break;
  }
  Py_DECREF(variables);
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

// For elastic._collectives. The private page in a process without a channel, or in a forked child.
PyObject* page(PyObject* /*module*/, PyObject* /*unused*/) {
  PyObject* capsule = PyCapsule_New(elastic_worker_page_in_use, "elastic._worker.page", nullptr);
  void* const announce = reinterpret_cast<void*>(&elastic_worker_announce_watch);
  if (capsule != nullptr && PyCapsule_SetContext(capsule, announce) != 0) Py_CLEAR(capsule);
  return capsule;
}

// What PyObject_GetBuffer() has returned for each part.
struct Buffers {
  Py_buffer* items = nullptr;
  Py_ssize_t count = 0;
  ~Buffers() {
    for (Py_ssize_t i = 0; i < count; ++i) PyBuffer_Release(&items[i]);
    PyMem_Free(items);
  }
};

// Calls the part's object with a view of its memory, which is valid during the call.
int fill_part(void* list, std::size_t part, void* memory) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const item = PyList_GET_ITEM(static_cast<PyObject*>(list), part);
  PyObject* const fill = PyTuple_GET_ITEM(item, 0);
  const Py_ssize_t bytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(item, 2));
  PyObject* const view = PyMemoryView_FromMemory(static_cast<char*>(memory), bytes, PyBUF_WRITE);
  PyObject* const done = view == nullptr ? nullptr : PyObject_CallFunction(fill, "O", view);
  const int is_filled = done != nullptr ? 1 : 0;
  if (is_filled != 0) {
    PyObject* const released = PyObject_CallMethod(view, "release", nullptr);
    if (released == nullptr) PyErr_Clear();  // something keeps it
    Py_XDECREF(released);
  }
  Py_XDECREF(done);
  Py_XDECREF(view);
  PyGILState_Release(state);
  return is_filled;
}

PyObject* snapshot_observer = nullptr;

void call_observer(void* memory, std::size_t bytes, int is_mapped) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const done =
      PyObject_CallFunction(snapshot_observer, "nni", reinterpret_cast<Py_ssize_t>(memory),
                            static_cast<Py_ssize_t>(bytes), is_mapped);
  if (done == nullptr) PyErr_WriteUnraisable(snapshot_observer);
  Py_XDECREF(done);
  PyGILState_Release(state);
}

// Once in a process, with an object that is called as elastic_snapshot_observer.
PyObject* snapshot_observe(PyObject* /*module*/, PyObject* wanted) {
  if (snapshot_observer == nullptr) {
    Py_INCREF(wanted);
    snapshot_observer = wanted;
    elastic_snapshot_observe(call_observer);
  }
  Py_RETURN_NONE;
}

PyObject* snapshot_save([[maybe_unused]] PyObject* module, PyObject* arguments) {
  PyObject* number = nullptr;
  PyObject* list = nullptr;
  int is_replicated = 0;
  if (PyArg_ParseTuple(arguments, "OO!p", &number, &PyList_Type, &list, &is_replicated) == 0) {
    return nullptr;
  }
  std::int64_t step = 0;
  if (!read_step(number, &step)) return nullptr;
  const Py_ssize_t count = PyList_GET_SIZE(list);
  const auto room = static_cast<std::size_t>(count) + 1;
  Buffers buffers;
  buffers.items = static_cast<Py_buffer*>(PyMem_Calloc(room, sizeof(Py_buffer)));
  auto* const parts =
      static_cast<elastic_snapshot_part*>(PyMem_Calloc(room, sizeof(elastic_snapshot_part)));
  bool is_whole = buffers.items != nullptr && parts != nullptr;
  if (!is_whole) PyErr_NoMemory();
  for (Py_ssize_t i = 0; is_whole && i < count; ++i) {
    PyObject* object = nullptr;
    int kind = 0;
    Py_ssize_t bytes = -1;
    is_whole = PyArg_ParseTuple(PyList_GET_ITEM(list, i), "Oi|n", &object, &kind, &bytes) != 0 &&
               (bytes >= 0 || PyObject_GetBuffer(object, &buffers.items[i], PyBUF_SIMPLE) == 0);
    if (!is_whole) break;
    buffers.count = i + 1;
    const bool is_filled = bytes >= 0;  // by a call of the object
    parts[i] = {is_filled ? nullptr : buffers.items[i].buf,
                static_cast<std::size_t>(is_filled ? bytes : buffers.items[i].len), kind};
  }
  int is_saved = 0;
  if (is_whole) {
    Py_BEGIN_CRITICAL_SECTION(module);
    Py_BEGIN_ALLOW_THREADS;
    is_saved = elastic_snapshot_save_by(step, parts, static_cast<std::size_t>(count), is_replicated,
                                        fill_part, list);
    Py_END_ALLOW_THREADS;
    Py_END_CRITICAL_SECTION();
  }
  PyMem_Free(parts);
  return is_whole && PyErr_Occurred() == nullptr ? PyBool_FromLong(is_saved) : nullptr;
}

// The step, the parts, and whether every rank continues from its own; None: nothing; False: it is
// damaged.
PyObject* snapshot_restore(PyObject* /*module*/, PyObject* /*unused*/) {
  std::int64_t step = 0;
  const elastic_snapshot_part* parts = nullptr;
  std::size_t count = 0;
  int found = 0;
  Py_BEGIN_ALLOW_THREADS;
  found = elastic_snapshot_restore(&step, &parts, &count);
  Py_END_ALLOW_THREADS;
  if (found == 0) Py_RETURN_NONE;
  if (found < 0) Py_RETURN_FALSE;
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(count));
  for (std::size_t i = 0; list != nullptr && i < count; ++i) {
    auto* const bytes = static_cast<char*>(const_cast<void*>(parts[i].data));
    PyObject* const view =
        PyMemoryView_FromMemory(bytes, static_cast<Py_ssize_t>(parts[i].bytes), PyBUF_READ);
    if (view == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), view);
  }
  if (list == nullptr) return nullptr;
  PyObject* const is_own = elastic_snapshot_is_own() != 0 ? Py_True : Py_False;
  return Py_BuildValue("LNO", static_cast<long long>(step), list, is_own);
}

PyObject* snapshot_error(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyUnicode_DecodeUTF8(elastic_snapshot_error(),
                              static_cast<Py_ssize_t>(std::strlen(elastic_snapshot_error())),
                              "replace");
}

// Returns a signal that has no handler yet; 0: none, or no channel, or the stacks are offered.
PyObject* free_signal(PyObject* /*module*/, PyObject* /*unused*/) {
  int number = 0;
  if (write_stacks != nullptr) return PyLong_FromLong(0);
  for (int i = 0; elastic_worker_stacks_descriptor() >= 0 && i < kSignalsTried; ++i) {
    struct sigaction found {};
    const int candidate = SIGRTMAX - 3 - i;
    if (candidate < SIGRTMIN || ::sigaction(candidate, nullptr, &found) != 0) break;
    if (found.sa_handler != SIG_DFL) continue;
    number = candidate;
    break;
  }
  return PyLong_FromLong(number);
}

PyObject* stacks_descriptor(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyLong_FromLong(elastic_worker_stacks_descriptor());
}

// faulthandler has registered `number` for the descriptor.
PyObject* offer_stacks(PyObject* /*module*/, PyObject* argument) {
  const int number = static_cast<int>(PyLong_AsLong(argument));
  if (PyErr_Occurred() != nullptr) return nullptr;
  struct sigaction action {};
  if (::sigaction(number, nullptr, &action) != 0) return PyErr_SetFromErrno(PyExc_OSError);
  write_stacks = action.sa_handler;
  action.sa_handler = on_request;
  if (::sigaction(number, &action, nullptr) != 0) return PyErr_SetFromErrno(PyExc_OSError);
  elastic_worker_offer_stacks(number);
  Py_RETURN_NONE;
}

// The interpreter raises this event for an exception that ends the main thread, before it prints
// it. No script can see the hook, and the interpreter calls it for an event in some 50 ns.
int on_audit_event(const char* event, PyObject* /*arguments*/, void* /*data*/) {
  const bool is_error = event[0] == 's' && std::strcmp(event, "sys.excepthook") == 0;
  if (is_error && ::syscall(SYS_gettid) == ::getpid()) elastic_worker_report_error();
  return 0;
}

PyObject* watch_errors(PyObject* /*module*/, PyObject* /*unused*/) {
  static bool is_watching = false;  // a hook cannot be removed
  if (is_watching) Py_RETURN_NONE;
  if (PySys_AddAuditHook(on_audit_event, nullptr) != 0) return nullptr;
  is_watching = true;
  Py_RETURN_NONE;
}

// The floor of the measurements.
PyObject* nothing(PyObject* /*module*/, PyObject* /*argument*/) { Py_RETURN_NONE; }

PyMethodDef functions[] = {
    {"progress", progress, METH_O,
     "progress(step)\n--\n\nReports that this many optimizer steps are complete."},
    {"count", count, METH_O,
     "count(step)\n--\n\nAs progress(), until the script has reported a step itself."},
    {"should_stop", should_stop, METH_O,
     "should_stop(step)\n--\n\nReports progress, and returns True if the job stops at this step on "
     "every rank:\nsave the state and exit with 0."},
    {"has_stopped", has_stopped, METH_NOARGS,
     "has_stopped()\n--\n\nWhether should_stop() has returned True in this process: the script "
     "should end,\nthe training is not complete."},
    {"round", round, METH_NOARGS, "round()\n--\n\nThe number of the job's round, from 0."},
    {"is_restart", is_restart, METH_NOARGS,
     "is_restart()\n--\n\nWhether an earlier round of the job has ended."},
    {"open", open, METH_NOARGS, "open()\n--\n\nWhether this process has the worker's channel."},
    {"stop_reason", stop_reason, METH_NOARGS,
     "stop_reason()\n--\n\nWhy this process is being stopped, as text; None: it is not."},
    {"enter", enter, METH_VARARGS, "enter(name, limit)\n--\n\nOpens a section."},
    {"leave", leave, METH_NOARGS, "leave()\n--\n\nCloses the innermost section."},
    {"join_membership", join_membership, METH_NOARGS,
     "join_membership()\n--\n\nDeclares that this process can take part in another round."},
    {"round_is_over", round_is_over, METH_NOARGS,
     "round_is_over()\n--\n\nWhether the round of this process was cut or left."},
    {"wait_until_over", wait_until_over, METH_O,
     "wait_until_over(seconds)\n--\n\nWhether the round is over; waits for it, at most a second."},
    {"begin_sockets", begin_sockets, METH_NOARGS, nullptr},
    {"end_sockets", end_sockets, METH_O, nullptr},
    {"leave_round", leave_round, METH_NOARGS,
     "leave_round()\n--\n\nReports that this process has left its round."},
    {"wait_for_round", wait_for_round, METH_O,
     "wait_for_round(timeout)\n--\n\nThe variables of the next round; None: none in time."},
    {"page", page, METH_NOARGS, "page()\n--\n\nThe memory of the channel."},
    {"snapshot_observe", snapshot_observe, METH_O, nullptr},
    {"snapshot_save", snapshot_save, METH_VARARGS, nullptr},
    {"snapshot_restore", snapshot_restore, METH_NOARGS, nullptr},
    {"snapshot_error", snapshot_error, METH_NOARGS, nullptr},
    {"free_signal", free_signal, METH_NOARGS, nullptr},
    {"stacks_descriptor", stacks_descriptor, METH_NOARGS, nullptr},
    {"offer_stacks", offer_stacks, METH_O, nullptr},
    {"watch_errors", watch_errors, METH_NOARGS, nullptr},
    {"nothing", nothing, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "elastic._worker",
                                 "The calls of elastic.worker that are made often.",
                                 0,
                                 functions,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__worker() {
  PyObject* const module = PyModule_Create(&module_definition);
#ifdef Py_GIL_DISABLED
  if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
