#pragma once

// Whole files that are read and replaced at once.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/status.h"

namespace elastic::os {

// What is in the file; nullopt: there is none. kResourceExhausted: it has more than `bytes_max`.
Result<std::optional<std::string>> read_file(const std::string& path, std::size_t bytes_max);

// What a file that was replaced survives.
enum class Durability : std::uint8_t {
  kProcessCrash,
  kHostCrash,  // blocks on the disk
};

// Replaces the file, or creates it (mode 0600): whoever reads it, also after a crash, finds the old
// content or the new. Writes <path>.new beside it on the way.
Status replace_file(const std::string& path, std::string_view bytes,
                    Durability durability = Durability::kHostCrash);

}  // namespace elastic::os
