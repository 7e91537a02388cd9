#include "bindings/interpreter_end.h"

#include <pthread.h>
#include <unistd.h>

// Compiled without exceptions: then pthread_cleanup_push() is a jump to this frame, which precedes
// the unwinding of the frames above it. glibc unwinds by the system's libgcc, which must not meet
// C++ frames: those of a module with a libgcc of its own end the process.

namespace elastic::bindings {
namespace {

void wait_for_the_end(void*) {
  while (true) ::pause();
}

}  // namespace

void restore_thread(PyThreadState* state) {
  pthread_cleanup_push(&wait_for_the_end, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

PyGILState_STATE ensure_gil() {
  PyGILState_STATE state;
  pthread_cleanup_push(&wait_for_the_end, nullptr);
  state = PyGILState_Ensure();
  pthread_cleanup_pop(0);
  return state;
}

}  // namespace elastic::bindings
