#pragma once

// The memory limit of a store, shared by its table and the buffers of all its connections. Pure;
// the owner serialises calls.

#include <cstddef>

#include "core/base/check.h"

namespace elastic {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  std::size_t used() const { return used_; }
  bool fits(std::size_t bytes) const { return bytes <= bytes_max_ - used_; }
  // Takes `bytes` if they fit. Call it before the memory is allocated.
  [[nodiscard]] bool take(std::size_t bytes) {
    if (!fits(bytes)) return false;
    used_ += bytes;
    return true;
  }
  // Replaces `old_bytes`, taken earlier, by `new_bytes`, if the difference fits.
  [[nodiscard]] bool exchange(std::size_t old_bytes, std::size_t new_bytes) {
    if (new_bytes > old_bytes) return take(new_bytes - old_bytes);
    give_back(old_bytes - new_bytes);
    return true;
  }
  void give_back(std::size_t bytes) {
    ELASTIC_CHECK(bytes <= used_);
    used_ -= bytes;
  }

 private:
  const std::size_t bytes_max_;
  std::size_t used_ = 0;  // never above bytes_max_
};

}  // namespace elastic
