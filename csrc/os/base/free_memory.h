#pragma once

namespace elastic::os {

// Returns malloc's free memory to the system. If it is much, this takes milliseconds, during which
// malloc blocks in other threads. Any thread.
void return_free_memory();

}  // namespace elastic::os
