#pragma once

// Reads and replaces whole files, and adds to them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/status.h"

namespace elastic::os {

// The content of the file; nullopt: it does not exist. kResourceExhausted: it has more than
// `bytes_max`.
Result<std::optional<std::string>> read_file(const std::string& path, std::size_t bytes_max);

// Which crashes a replaced file survives.
enum class Durability : std::uint8_t {
  kProcessCrash,
  kHostCrash,  // blocks on the disk
};

// Replaces the file atomically, or creates it (mode 0600): readers find the old or the new content,
// also after a crash. Uses <path>.new as a temporary file.
Status replace_file(const std::string& path, std::string_view bytes,
                    Durability durability = Durability::kHostCrash);

// Adds the bytes at the end of the file, or creates it (mode 0644, less the umask).
Status append_to_file(const std::string& path, std::string_view bytes);

}  // namespace elastic::os
