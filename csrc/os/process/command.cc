#include "os/process/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>

#include "os/base/fd.h"
#include "os/base/posix_error.h"
#include "os/loop/clock.h"
#include "os/loop/wait.h"
#include "os/process/child.h"

namespace elastic::os {
namespace {

constexpr const char* kShell = "/bin/sh";
constexpr Duration kLookEvery = std::chrono::milliseconds(100);

int spawn(const std::string& command, const std::vector<std::string>& environment, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> variables;
  for (const std::string& one : environment) variables.push_back(const_cast<char*>(one.c_str()));
  variables.push_back(nullptr);
  char* const argv[] = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                        const_cast<char*>(command.c_str()), nullptr};
  const int error = ::posix_spawn(pid, kShell, &actions, &attributes, argv, variables.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

// False: it still runs at the limit.
bool wait_for_end(pid_t pid, Duration limit) {
  const Instant end = monotonic_now() + limit;
  const UniqueFd process = open_pidfd(pid);
  if (process.valid()) return wait_ready(process.get(), POLLIN, {.deadline = end}).ok();
  while (true) {  // an older kernel
    siginfo_t info{};
    constexpr int kLook = WEXITED | WNOHANG | WNOWAIT;
    const int found = ::waitid(P_PID, static_cast<id_t>(pid), &info, kLook);
    if (found != 0 || info.si_pid == pid) return true;
    if (monotonic_now() >= end) return false;
    (void)wait_ready(-1, 0, {.deadline = std::min(end, monotonic_now() + kLookEvery)});
  }
}

}  // namespace

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view text(*one);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool is_replaced =
        std::any_of(variables.begin(), variables.end(),
                    [&](const std::string& other) { return other.starts_with(name); });
    if (!is_replaced) all.emplace_back(text);
  }
  all.insert(all.end(), variables.begin(), variables.end());
  return all;
}

std::string run_command(const std::string& command, const std::vector<std::string>& environment,
                        Duration limit) {
  pid_t pid = -1;
  if (const int error = spawn(command, environment, &pid); error != 0) {
    return std::string(posix_error("was not run: cannot start /bin/sh", error).message());
  }
  if (wait_for_end(pid, limit)) {
    const ChildEnd end = *reap_child(pid);
    return end.succeeded() ? "" : end.describe();
  }
  // It is not reaped yet, so its process group is its own.
  ::kill(-pid, SIGKILL);
  (void)reap_child(pid);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
  return "was killed after " + std::to_string(seconds) + " s";
}

}  // namespace elastic::os
