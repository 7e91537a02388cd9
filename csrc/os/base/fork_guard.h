#pragma once

// Detects that an object is a copy in a forked child, which must not use the parent's connections
// and threads.

#include <sys/types.h>
#include <unistd.h>

namespace elastic::os {

class ForkGuard {
 public:
  pid_t pid() const { return pid_; }
  bool is_in_child() const { return ::getpid() != pid_; }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace elastic::os
