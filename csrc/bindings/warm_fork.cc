// elastic._warm._fork: how the template process forks workers. Python's C interface and nothing
// else; the template cannot load more without being different from a worker.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

// Theory of operation. The worker must be a child of the guardian, which is the subreaper of the
// template: so its parent has to end. Were that parent a process of its own, the page tables of
// everything that was imported would be copied twice and destroyed once for each worker, which
// takes longer than all the rest. The parent is therefore made by vfork(2): it uses the memory of
// the template, which is suspended meanwhile, and does nothing but fork and end.
//
// POSIX allows a child of vfork only to execute or to end. On Linux it is a process that shares its
// parent's memory and signal handlers' addresses, and glibc's fork does not depend on the
// difference: what it changes in the calling process, it restores before it returns. The worker
// returns from the function that called vfork, but in a copy of the memory, in which that function
// has never continued.

namespace {

constexpr const char* kForkText =
    "fork_orphan(): forks; the new process is a child of the nearest subreaper. Returns its pid,\n"
    "or 0 in it. Raises OSError. Call it in a process with one thread, with no other children "
    "that\n"
    "it does not wait for by their pids.";

// Waits for the process, which has ended or is about to.
void wait_for(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

PyObject* fork_orphan(PyObject* /*module*/, PyObject* /*arguments*/) {
  // Written by the child of vfork, read by its parent and by the worker.
  volatile pid_t worker = -1;
  volatile int error = 0;
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  PyOS_BeforeFork();
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  // NOLINTNEXTLINE(clang-analyzer-security.insecureAPI.vfork): see above
  const pid_t parent = ::vfork();
  if (parent == 0) {
    ::setsid();  // the guardian kills the group of a template that has ended
    worker = ::fork();
    if (worker != 0) {
      if (worker < 0) error = errno;
      ::_exit(0);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    PyOS_AfterFork_Child();
    return PyLong_FromLong(0);
  }
  if (parent < 0) error = errno;
  if (parent > 0) wait_for(parent);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  PyOS_AfterFork_Parent();
  if (worker < 0) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  return PyLong_FromLong(worker);
}

PyMethodDef functions[] = {
    {"fork_orphan", fork_orphan, METH_NOARGS, kForkText},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fork", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__fork() {
  PyObject* const module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
  // It has no state of its own, and the template that calls it has one thread.
  if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
