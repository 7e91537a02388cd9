#pragma once

// An owned file descriptor, and the options of a socket.

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace elastic::os {

// All our descriptors are created close-on-exec.
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
    if (fd_ >= 0) ::close(fd_);  // after EINTR, too, Linux has closed it (close(2))
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// For options without which a socket works: a failure is ignored.
inline void set_option(int socket, int level, int option, int value) {
  [[maybe_unused]] const int result = ::setsockopt(socket, level, option, &value, sizeof value);
}

}  // namespace elastic::os
