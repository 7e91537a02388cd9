#pragma once

// The processes that a sweep lets end by themselves, and their deadlines.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "elastic/time.h"
#include "os/process/process_tree.h"

namespace elastic::guardian {

// The arguments, separated by blanks; "": unknown.
std::string command_of(pid_t pid);
// Helpers of Python and torch that end by themselves soon after the process that has started them.
bool ends_with_its_parent(const std::string& command);

// The cleaners (os/process/process_tree.h) that a sweep has found and does not kill at once.
class Cleaners {
 public:
  bool add(pid_t child);  // false: it is none
  bool is_known(pid_t child) const;
  // Nothing but them is left: they must end in time, and shm managers are not waited for.
  void leave(Instant now);
  bool is_left(pid_t child) const;  // a shm manager that a sweep has left
  bool are_left() const { return !left_.empty(); }
  void forget(pid_t child);             // it was reaped
  void reap();                          // those that were left
  void end_sweep() { known_.clear(); }  // except those that were left
  void expire(Instant now);
  std::optional<Instant> deadline() const;

 private:
  struct Cleaner {
    pid_t pid = -1;
    os::Cleaner kind = os::Cleaner::kNone;
    std::optional<Instant> deadline;  // then it is killed; max: it was
  };
  std::vector<Cleaner> known_;
  std::vector<Cleaner> left_;  // still running children
};

}  // namespace elastic::guardian
