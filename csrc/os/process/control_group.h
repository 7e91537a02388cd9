#pragma once

// A control group (cgroup v2) of its own below this process's, for holding and killing processes
// together with everything that they fork.

#include <sys/types.h>

#include <optional>
#include <string>

namespace elastic::os {

class ControlGroup {
 public:
  // Makes the group `name`, frozen: what is added stands still. nullopt where it cannot be made (no
  // cgroup v2, no permission).
  static std::optional<ControlGroup> create_frozen(const std::string& name);
  ControlGroup(ControlGroup&& other) noexcept;
  ControlGroup& operator=(ControlGroup&& other) noexcept;
  ~ControlGroup();  // removes the group; it stays if a process is left in it

  // Moves a process here. What it forks later is here too.
  bool add(pid_t pid) const;
  // SIGKILL to all processes of the group at once. False where the kernel (before 5.14) cannot.
  bool kill() const;

 private:
  explicit ControlGroup(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;  // "": moved from
};

}  // namespace elastic::os
