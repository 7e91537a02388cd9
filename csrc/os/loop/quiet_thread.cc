#include "os/loop/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <utility>

namespace elastic::os {

Result<std::thread> start_quiet_thread(const char* name, std::function<void()> work) {
  sigset_t all;
  sigset_t saved;
  ::sigfillset(&all);
  // A fault of the thread itself reaches the program's handler (faulthandler, crash reporters).
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    ::sigdelset(&all, fault);
  }
  ::pthread_sigmask(SIG_SETMASK, &all, &saved);  // a thread inherits its creator's mask
  std::thread thread;
  std::string failure;
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    failure = std::string("cannot start a thread: ") + error.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  if (!thread.joinable()) return Status(StatusCode::kResourceExhausted, std::move(failure));
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace elastic::os
