#pragma once

// Threads of a library inside somebody else's program.

#include <functional>
#include <thread>

#include "elastic/status.h"

namespace elastic::os {

// Starts a thread that blocks every signal, so that signals reach the embedding program's own
// threads, and writing to a closed pipe is an error and no signal. `name` shows in /proc (at most
// 15 characters).
Result<std::thread> start_quiet_thread(const char* name, std::function<void()> work);

}  // namespace elastic::os
