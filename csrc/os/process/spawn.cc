#include "os/process/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "os/base/posix_error.h"
#include "os/process/child.h"

namespace elastic::os {
namespace {

// Must be above the descriptor's number in the child: dup2 of a descriptor onto itself leaves it
// close-on-exec (posix_spawn_file_actions_adddup2, before glibc 2.29).
constexpr int kLowestSafeDescriptor = 16;

// The attributes and file actions of posix_spawn.
class SpawnSettings {
 public:
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    sigset_t all;
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  int pass(int from, int to) { return ::posix_spawn_file_actions_adddup2(&actions_, from, to); }
  int spawn(const std::string& path, char* const* argv, pid_t* pid) {
    return ::posix_spawn(pid, path.c_str(), &actions_, &attributes_, argv, environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

Result<Helper> spawn_helper(const std::string& path, const std::string& argument, int descriptor,
                            int shared) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return posix_error("cannot create a socket pair", errno);
  }
  Helper helper;
  helper.channel.reset(ends[0]);
  UniqueFd theirs(ends[1]);
  theirs.reset(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, kLowestSafeDescriptor));
  if (!theirs.valid()) {
    // EINVAL: the number is not below RLIMIT_NOFILE.
    return posix_error("cannot prepare a socket pair", errno == EINVAL ? EMFILE : errno);
  }
  if (::fcntl(helper.channel.get(), F_SETFL, O_NONBLOCK) != 0) {
    return posix_error("cannot prepare a socket pair", errno);
  }
  UniqueFd copy;
  if (shared >= 0) {
    copy.reset(::fcntl(shared, F_DUPFD_CLOEXEC, kLowestSafeDescriptor));
    if (!copy.valid()) return posix_error("cannot copy a descriptor", errno);
  }
  SpawnSettings settings;
  int error = settings.pass(theirs.get(), descriptor);
  if (error == 0 && copy.valid()) error = settings.pass(copy.get(), descriptor + 1);
  if (error == 0) {
    char is_shared[] = "shared";
    char* const argv[] = {const_cast<char*>(path.c_str()), const_cast<char*>(argument.c_str()),
                          copy.valid() ? is_shared : nullptr, nullptr};
    error = settings.spawn(path, argv, &helper.pid);
  }
  if (error != 0) return posix_error("cannot start " + path, error);
  return helper;
}

namespace {

std::optional<std::string> end_helper(pid_t pid, int how) {
  // Until the child is reaped, its pid is not reused; killing a child that is exiting has no
  // effect.
  siginfo_t info{};
  constexpr int kLookOnly = WEXITED | WNOHANG | WNOWAIT;
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, kLookOnly) == 0) ::kill(pid, SIGKILL);
  const std::optional<ChildEnd> end = reap_child(pid, how);
  return end ? std::optional(end->describe()) : std::nullopt;
}

}  // namespace

std::string end_helper(pid_t pid) { return *end_helper(pid, 0); }
std::optional<std::string> try_end_helper(pid_t pid) { return end_helper(pid, WNOHANG); }

}  // namespace elastic::os
