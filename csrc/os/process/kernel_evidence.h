#pragma once

// What the kernel recorded about processes that it killed.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/time.h"

namespace elastic::os {

// How many processes the kernel killed for lack of memory: the count of this process's control
// group, or of the whole machine if the group has none. Every call reads files of /proc and /sys,
// which do not block.
//
// Weak point: the counter names no process. If the kernel kills another process of the group in
// the same round, a worker that was killed otherwise is reported as out of memory.
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

// Calls `sink` with the text of each line that the kernel wrote since `since`. Returns at the end
// of the log (/dev/kmsg); does nothing if it cannot be read, as usually only root may.
void read_kernel_log(Instant since, const std::function<void(std::string_view)>& sink);

}  // namespace elastic::os
