#pragma once

// An owned file descriptor. Every descriptor of ours is close-on-exec from the system call onward.

#include <unistd.h>

#include <utility>

namespace elastic::os {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);  // EINTR: Linux has closed it all the same (close(2))
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace elastic::os
