#include "os/process/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "support/eventually.h"

namespace elastic::os {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

MemoryFile file_of(std::uint64_t bytes) {
  MemoryFile file(UniqueFd(::memfd_create("elastic-test", MFD_CLOEXEC)));
  const std::string text(bytes, 'x');
  EXPECT_EQ(::write(file.get(), text.data(), bytes), static_cast<ssize_t>(bytes));
  return file;
}

bool is_closed(int fd) { return ::fcntl(fd, F_GETFD) == -1 && errno == EBADF; }

TEST(MemoryFile, ClosesASmallOneAtOnce) {
  MemoryFile file = file_of(kMiB);
  const int fd = file.get();
  file.reset();
  EXPECT_TRUE(is_closed(fd));
  EXPECT_FALSE(file.valid());
}

TEST(MemoryFile, ClosesALargeOneAtLast) {
  int fd = -1;
  {
    const MemoryFile file = file_of(64 * kMiB);
    fd = file.get();
  }
  EXPECT_TRUE(support::eventually([&] { return is_closed(fd); }));
  EXPECT_TRUE(support::eventually([] { return memory_being_freed() == 0; }));
}

TEST(MemoryFile, ClosesWhatItReplaces) {
  MemoryFile file = file_of(kMiB);
  const int former = file.get();
  MemoryFile other = file_of(2 * kMiB);
  const int fd = other.get();
  file = std::move(other);
  EXPECT_EQ(file.get(), fd);
  EXPECT_TRUE(is_closed(former));
  EXPECT_FALSE(is_closed(fd));
}

}  // namespace
}  // namespace elastic::os
