#pragma once

// This process: its limit of open files, whether it is a forked child, its memory, and random
// numbers from the kernel. Any thread.

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace elastic::os {

// Raises the soft limit of open files (RLIMIT_NOFILE): an agent needs more than most shells allow;
// its workers get the limit that the user set. While an object exists, the soft limit is the hard
// one, or as many as a coordinator can use. The last one that is destroyed restores the limit,
// unless the embedding program has changed it since.
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

// Detects that an object is a copy in a forked child, which must not use the parent's connections
// and threads.
class ForkGuard {
 public:
  pid_t pid() const { return pid_; }
  bool is_in_child() const { return ::getpid() != pid_; }

 private:
  pid_t pid_ = ::getpid();
};

// Returns malloc's free memory to the system. If it is much, this takes milliseconds, during which
// malloc blocks in other threads.
void return_free_memory();

// A random number from the kernel, as the seed of an Rng (core/base/random.h).
std::uint64_t random_seed();

}  // namespace elastic::os
