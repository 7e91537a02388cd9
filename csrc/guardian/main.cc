// elastic-guardian: starts and reaps a node's workers, and kills them when its agent dies.
//
//   elastic-guardian <pid of the agent>     with the channel to the agent as descriptor 3
//   elastic-guardian <pid of the agent> shared     and a socket that the guardian holds until no
//                                                  process of the workers is left, as descriptor 4
//
// The agent starts it in a new session with all signals blocked. They remain blocked, so that only
// SIGKILL can end it before its agent.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "guardian/guardian.h"
#include "os/base/fd.h"
#include "os/file/temporary_sweep.h"
#include "os/process/child.h"

namespace elastic::guardian {
namespace {

// The same on every architecture. The headers of an old C library, with which wheels are compiled,
// lack it, and the kernel decides anyway.
constexpr long kCloseRange = 436;  // since Linux 5.9

constexpr int kExitUsage = 2;
constexpr int kExitNoSystem = 70;
constexpr unsigned kRemovalLimitS = 10;

// Signals that nohup and shells ignore for the user remain ignored, in workers too. All others are
// reset: CPython ignores SIGPIPE and SIGXFSZ, and workers must not inherit that.
constexpr int kStaysIgnored[] = {SIGHUP, SIGINT, SIGQUIT};

bool stays_ignored(int number) {
  for (const int kept : kStaysIgnored) {
    struct sigaction action {};
    if (kept == number && ::sigaction(kept, nullptr, &action) == 0) {
      return action.sa_handler == SIG_IGN;
    }
  }
  return false;
}

void reset_dispositions() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  // Signals that the C library reserves return EINVAL.
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (!stays_ignored(number)) ::sigaction(number, &standard, nullptr);
  }
  standard.sa_flags = SA_NOCLDSTOP;
  ::sigaction(SIGCHLD, &standard, nullptr);
}

// Workers inherit only the agent's descriptors 0 to 2. If the agent had closed one of them, it is
// /dev/null, so that a file that a worker opens does not become its standard output.
void reduce_descriptors(int highest) {
  int null = 0;
  do {
    null = ::open("/dev/null", O_RDWR);
  } while (null >= 0 && null <= STDERR_FILENO);
  if (null > highest) ::close(null);

  for (int kept = kChannelDescriptor; kept <= highest; ++kept) ::fcntl(kept, F_SETFD, FD_CLOEXEC);
  // A loop up to RLIMIT_NOFILE would take minutes: containers set it to 2^30.
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) {
    ::syscall(kCloseRange, highest + 1, ~0U, 0);
    return;
  }
  std::vector<int> others;
  while (const dirent* entry = ::readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (number > highest && number != ::dirfd(folder)) others.push_back(number);
  }
  ::closedir(folder);
  for (const int number : others) ::close(number);
}

os::UniqueFd watch_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  return os::UniqueFd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
}

// The agent's directories are unlocked now that it has ended. A file system that does not respond
// delays no other process, since no worker is left; the default action of SIGALRM ends this one.
void remove_temporary_files() {
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  ::alarm(kRemovalLimitS);
  os::sweep_temporary(os::temporary_parent());
}

int run(int argc, char** argv) {
  const bool is_shared = argc == 3 && std::string_view(argv[2]) == "shared";
  const pid_t agent =
      argc == 2 || is_shared ? static_cast<pid_t>(std::strtol(argv[1], nullptr, 10)) : 0;
  if (agent <= 0 || ::fcntl(kChannelDescriptor, F_GETFD) < 0) {
    std::fputs("elastic-guardian is started by elastic, not by hand\n", stderr);
    return kExitUsage;
  }
  reduce_descriptors(is_shared ? kLivenessDescriptor : kChannelDescriptor);
  reset_dispositions();
  os::UniqueFd signals = watch_signals();
  // Without pidfds only end of file shows that the agent died.
  os::UniqueFd agent_fd = os::open_pidfd(agent);
  if (::getppid() != agent) return 0;  // it died before the pidfd was made; nothing was started
  if (!signals.valid() || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return kExitNoSystem;
  ::fcntl(kChannelDescriptor, F_SETFL, O_NONBLOCK);
  Guardian guardian(os::UniqueFd(kChannelDescriptor), std::move(signals), std::move(agent_fd));
  guardian.run();
  if (is_shared) ::close(kLivenessDescriptor);
  if (guardian.agent_has_ended()) remove_temporary_files();
  return 0;
}

}  // namespace
}  // namespace elastic::guardian

// Not exit(): there is nothing to flush, and a sanitizer's checks at exit need signals.
int main(int argc, char** argv) { ::_exit(elastic::guardian::run(argc, argv)); }
