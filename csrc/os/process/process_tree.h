#pragma once

// What /proc tells about processes.

#include <sys/types.h>

#include <string>
#include <vector>

namespace elastic::os {

// The direct children of all threads of this process, zombies and those that it adopted as a
// subreaper included, in no order. False when /proc cannot tell.
// Any thread; what forks or dies meanwhile may be missed.
bool list_children(std::vector<pid_t>* children);
// The same by a look at every process of the system: what the above falls back to on a kernel
// without CONFIG_PROC_CHILDREN.
bool list_children_by_scan(std::vector<pid_t>* children);

// What a process waits for: "state D in folio_wait_bit". Empty parts are left out.
std::string describe_wait(pid_t pid);

}  // namespace elastic::os
