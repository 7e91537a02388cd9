#pragma once

#include <sys/socket.h>

namespace elastic::os {

// For options without which a socket works: a failure is ignored.
inline void set_option(int fd, int level, int option, int value) {
  [[maybe_unused]] const int result = ::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace elastic::os
