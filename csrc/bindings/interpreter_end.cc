#include "bindings/interpreter_end.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

// Compiled without exceptions: then pthread_cleanup_push() is a jump to this frame, which precedes
// the unwinding of the frames above it. glibc unwinds by the system's libgcc, which must not meet
// C++ frames: those of a module with a libgcc of its own end the process.

namespace elastic::bindings {
namespace {

void wait_for_the_end(void*) {
  while (true) ::pause();
}

// A thread that comes late, as on a busy host, must not even ask for the lock: the thread states
// are freed before the process ends. The thread that ends the interpreter may.
void wait_if_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool is_ending = Py_IsFinalizing() != 0;
#else
  const bool is_ending = _Py_IsFinalizing() != 0;
#endif
  if (is_ending && ::syscall(SYS_gettid) != ::getpid()) wait_for_the_end(nullptr);
}

}  // namespace

void restore_thread(PyThreadState* state) {
  wait_if_ending();
  pthread_cleanup_push(&wait_for_the_end, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

PyGILState_STATE ensure_gil() {
  PyGILState_STATE state;
  wait_if_ending();
  pthread_cleanup_push(&wait_for_the_end, nullptr);
  state = PyGILState_Ensure();
  pthread_cleanup_pop(0);
  return state;
}

}  // namespace elastic::bindings
