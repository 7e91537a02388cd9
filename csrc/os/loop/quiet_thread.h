#pragma once

// Threads of a library that is embedded in another program.

#include <functional>
#include <thread>

#include "elastic/status.h"

namespace elastic::os {

// Starts a thread that blocks every signal, so that signals reach the embedding program's threads,
// and writing to a closed pipe fails with EPIPE instead of SIGPIPE. `name` is shown in /proc (at
// most 15 characters).
Result<std::thread> start_quiet_thread(const char* name, std::function<void()> work);

}  // namespace elastic::os
