#pragma once

// Brings processes that replace themselves faster than they can be killed one by one to a stop.

#include <sys/types.h>

#include <optional>
#include <unordered_set>
#include <vector>

#include "os/process/control_group.h"

namespace elastic::guardian {

class Containment {
 public:
  Containment();
  // Makes every one of `processes` that is not held yet stand still. True if there was one: then
  // something may have been forked in between, so look again.
  bool hold(const std::vector<pid_t>& processes);
  // SIGKILL to all that are held. hold() may be called again afterwards.
  void kill();

 private:
  void hold_one(pid_t pid);

  std::optional<os::ControlGroup> group_;
  std::unordered_set<pid_t> held_;
};

}  // namespace elastic::guardian
