#pragma once

// The kernel's table of this process's descriptors.

#include <cstddef>

namespace elastic::os {

// Makes room for `count` descriptors (at most as many as the process may have open), in a thread of
// its own; later calls with no larger `count` do nothing. 8 bytes of kernel memory each. Any
// thread.
//
// Linux enlarges the table when a new descriptor does not fit, to the next power of two, and if
// several threads share it, waits for an RCU grace period first (expand_fdtable in fs/file.c). The
// thread that accepts a connection then stands still for 8 to 20 ms, at 256, 512, 1024, …
// descriptors. Threads whose descriptors fit do not wait for the one that enlarges it.
void enlarge_descriptor_table(std::size_t count);

}  // namespace elastic::os
