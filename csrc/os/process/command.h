#pragma once

// Runs a command of the shell to its end.

#include <string>
#include <vector>

#include "elastic/time.h"

namespace elastic::os {

// This process's environment with these variables, NAME=VALUE, in place of those of their names.
std::vector<std::string> environment_with(const std::vector<std::string>& variables);

// Executes sh -c `command` in a session of its own, with /dev/null as stdin, and waits for it.
// After `limit` its process group is killed. "": it exited with 0; otherwise how it ended ("exited
// with code 3"). Blocks; not on a loop.
std::string run_command(const std::string& command, const std::vector<std::string>& environment,
                        Duration limit);

}  // namespace elastic::os
