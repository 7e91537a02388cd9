#pragma once

// Tells an object that it is a copy in a forked child, where its connections and threads are not
// its own to use.

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
