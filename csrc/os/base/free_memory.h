#pragma once

namespace elastic::os {

// Returns to the system the memory that malloc keeps although it is free. Takes milliseconds where
// much is kept, and other threads' calls of malloc wait for it. Any thread.
void return_free_memory();

}  // namespace elastic::os
