#include "os/file/stream_channel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "os/base/posix_error.h"

namespace elastic::os {
namespace {

constexpr unsigned kMemoryDevices = 1;  // the major number of /dev/null, /dev/zero, …
constexpr unsigned kNull = 3;
// More than a busy worker writes between two reads. The default of 64 KiB remains if this is
// refused.
constexpr int kNamedPipeBytes = 256 * 1024;

// O_NOCTTY: it must not become the controlling terminal of the process that opens it.
UniqueFd open_other_side(int terminal) {
#ifdef TIOCGPTPEER
  // Works even if /dev/pts is another instance than the terminal's.
  const int side = ::ioctl(terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (side >= 0) return UniqueFd(side);
#endif
  char name[64];
  if (::ptsname_r(terminal, name, sizeof name) != 0) return {};
  return UniqueFd(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
}

Result<StreamChannel> open_terminal_like(int fd) {
  StreamChannel channel;
  channel.is_terminal = true;
  channel.reader.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.reader.valid() || ::unlockpt(channel.reader.get()) != 0) {
    return posix_error("cannot create a pseudo-terminal", errno);
  }
  channel.writer = open_other_side(channel.reader.get());
  termios settings{};
  if (!channel.writer.valid() || ::tcgetattr(fd, &settings) != 0) {
    return posix_error("cannot open a pseudo-terminal", errno);
  }
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  if (::tcsetattr(channel.writer.get(), TCSANOW, &settings) != 0) {
    return posix_error("cannot set a pseudo-terminal", errno);
  }
  copy_window_size(fd, channel.reader.get());
  return channel;
}

Result<StreamChannel> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return posix_error("cannot create a pipe", errno);
  StreamChannel channel;
  channel.reader.reset(ends[0]);
  channel.writer.reset(ends[1]);
  return channel;
}

Result<StreamChannel> not_blocking(Result<StreamChannel> channel) {
  if (channel.ok() && ::fcntl(channel->reader.get(), F_SETFL, O_NONBLOCK) != 0) {
    return posix_error("cannot prepare a worker's output", errno);
  }
  return channel;
}

}  // namespace

bool is_inherited(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

bool is_same_file(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

bool is_null_device(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISCHR(info.st_mode) &&
         info.st_rdev == makedev(kMemoryDevices, kNull);
}

Result<StreamChannel> open_channel_like(int fd) {
  if (::isatty(fd) != 1) return open_pipe_channel();
  return not_blocking(open_terminal_like(fd));
}

Result<StreamChannel> open_pipe_channel() { return not_blocking(open_pipe()); }

// Open for writing, too, so that it does not end.
Result<UniqueFd> create_named_pipe(const std::string& path) {
  if (::mkfifo(path.c_str(), 0600) != 0) {
    return posix_error("cannot create the pipe " + path, errno);
  }
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return posix_error("cannot open the pipe " + path, errno);
  ::fcntl(fd.get(), F_SETPIPE_SZ, kNamedPipeBytes);
  return fd;
}

void copy_window_size(int fd, int reader) {
  winsize wanted{};
  winsize current{};
  if (::ioctl(fd, TIOCGWINSZ, &wanted) != 0) return;
  if (::ioctl(reader, TIOCGWINSZ, &current) == 0 &&
      std::memcmp(&wanted, &current, sizeof wanted) == 0) {
    return;
  }
  ::ioctl(reader, TIOCSWINSZ, &wanted);
}

}  // namespace elastic::os
