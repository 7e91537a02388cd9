#pragma once

// Files of memory, and how long their pages take to go.

#include <cstdint>
#include <utility>

#include "os/base/fd.h"

namespace elastic::os {

// Owns a descriptor of memfd_create(), which others may have, too. When the last one is closed the
// kernel frees the pages, which takes 0.2 s for a GiB and several times as long on a busy host: a
// large file is closed on a thread of its own, so that the one that drops it goes on.
class MemoryFile {
 public:
  MemoryFile() = default;
  explicit MemoryFile(UniqueFd fd) : fd_(std::move(fd)) {}
  MemoryFile(MemoryFile&&) = default;
  MemoryFile& operator=(MemoryFile&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
    }
    return *this;
  }
  ~MemoryFile() { reset(); }

  int get() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void reset();

 private:
  UniqueFd fd_;
};

// Of the files that are being closed in this process. memory_left() counts them as free. Any
// thread.
std::uint64_t memory_being_freed();

}  // namespace elastic::os
