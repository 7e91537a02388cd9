#pragma once

// How many processes the kernel killed for lack of memory.

#include <cstdint>
#include <optional>
#include <string>

namespace elastic::os {

// The count of this process's control group, or of the whole machine if the group has none. Every
// call reads files of /proc and /sys, which do not block.
class OomCounter {
 public:
  // `root`: of the file system, for tests.
  explicit OomCounter(const std::string& root = "");

  // For messages: "memory.events of the control group /job", "/proc/vmstat of the machine".
  const std::string& name() const { return name_; }
  // nullopt: the kernel has no such counter, or it cannot be read.
  std::optional<std::uint64_t> read() const;

 private:
  std::string path_;
  std::string name_;
};

}  // namespace elastic::os
