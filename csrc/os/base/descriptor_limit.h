#pragma once

// The soft limit of open files (RLIMIT_NOFILE). An agent needs more open files than most shells
// allow; its workers get the limit that the user set. Any thread.

#include <sys/types.h>

#include <cstddef>

namespace elastic::os {

// While an object exists, this process's soft limit is the hard one, or as many as a coordinator
// can use. The last one that is destroyed restores the limit, unless the embedding program has
// changed it since.
class RaisedDescriptorLimit {
 public:
  RaisedDescriptorLimit();
  RaisedDescriptorLimit(const RaisedDescriptorLimit&) = delete;
  RaisedDescriptorLimit& operator=(const RaisedDescriptorLimit&) = delete;
  ~RaisedDescriptorLimit();
};
// Gives a child the soft limit that this process had before it was raised, unless the embedding
// program has changed the limit since.
void restore_descriptor_limit(pid_t child);
// How many descriptors this process may have open.
std::size_t descriptor_limit();

}  // namespace elastic::os
