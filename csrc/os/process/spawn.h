#pragma once

// Starts a helper program that is connected to this process by a socket.

#include <sys/types.h>

#include <optional>
#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

struct Helper {
  pid_t pid = -1;
  UniqueFd channel;  // non-blocking stream socket; end of file when the helper has ended
};

// Executes `path` with `argument`, as the leader of a new session, with all signals blocked, and
// with the other end of the channel as `descriptor`. `shared`, unless it is -1, is passed as the
// next descriptor, and a second argument, "shared", says so. Signal dispositions, directory and
// environment are inherited. Any thread; the calling thread's memory is not copied (posix_spawn).
Result<Helper> spawn_helper(const std::string& path, const std::string& argument, int descriptor,
                            int shared = -1);

// Kills the child unless it is exiting, reaps it and returns how it ended ("exited with code 3").
// For a child that has closed its channel: the wait is short, unless a call of the child cannot be
// interrupted.
std::string end_helper(pid_t pid);
// The same without the wait; nullopt: it still exists, call again.
std::optional<std::string> try_end_helper(pid_t pid);

}  // namespace elastic::os
