#pragma once

#include <cstdint>
#include <string>

namespace elastic::os {

struct MemoryLeft {
  std::uint64_t bytes = UINT64_MAX;
  std::string of = {};  // the limit, in words: "on this host"
};

// What this process and its workers may still use: of the limits of its control groups (both
// versions, each with its parents), and of the host. Includes memory_being_freed().
// `root`: of the file system, for tests.
MemoryLeft memory_left(const std::string& root = "");

// "1.5 GiB"
std::string bytes_text(std::uint64_t bytes);

}  // namespace elastic::os
