#include "os/file/stream_channel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "os/base/posix_error.h"
#include "os/loop/event_loop.h"

// Theory of operation of the reader. The loop watches an idle channel. A channel that has become
// readable is no longer watched, but read at intervals, until a read finds nothing: waking a
// thread costs the writer several microseconds, more than the write itself. After much the next
// read follows at once.
//
// The watch is armed for one event, because the end of a channel is reported whatever is watched.

namespace elastic::os {
namespace {

constexpr unsigned kMemoryDevices = 1;  // the major number of /dev/null, /dev/zero, …
constexpr unsigned kNull = 3;
// More than a busy worker writes between two reads. The default of 64 KiB remains if this is
// refused.
constexpr int kNamedPipeBytes = 256 * 1024;

constexpr std::size_t kReadBytes = 256 * 1024;
constexpr std::size_t kFullBytes = 64 * 1024;  // what a pipe holds
constexpr std::size_t kManyBytes = 8 * 1024;   // in a turn: the next one follows without a pause
constexpr int kReadsPerTurn = 16;              // of one channel, then the next one
constexpr int kReadsMax = 64;
constexpr std::uint32_t kWatched = EPOLLIN | EPOLLONESHOT;

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

struct ChannelReader::Channel final : FdHandler {
  Channel(ChannelReader* channel_owner, ChannelId channel_id, UniqueFd reader, bool can_pause)
      : owner(channel_owner), id(channel_id), is_pausable(can_pause), fd(std::move(reader)) {}
  void on_ready(std::uint32_t) override { owner->mark_unread(this); }

  ChannelReader* const owner;
  const ChannelId id;
  const bool is_pausable;
  UniqueFd fd;
  bool is_unread = false;   // read in the next turn; not watched
  bool is_closing = false;  // reads to the end, then it is removed
  Watch watch;
};

ChannelReader::ChannelReader(EventLoop* loop, LogTail::Observer* observer)
    : loop_(loop),
      observer_(observer),
      buffer_(kReadBytes, '\0'),
      turn_(loop, [this] { read_turn(); }) {}

ChannelReader::~ChannelReader() = default;

Result<ChannelReader::ChannelId> ChannelReader::follow(UniqueFd fd, bool is_pausable) {
  auto channel = std::make_unique<Channel>(this, last_id_ - 1, std::move(fd), is_pausable);
  Result<Watch> watch = loop_->watch(channel->fd.get(), kWatched, channel.get());
  if (!watch.ok()) return watch.status();
  channel->watch = *std::move(watch);
  channels_[--last_id_] = std::move(channel);
  return last_id_;
}

void ChannelReader::mark_unread(Channel* channel) {
  channel->is_unread = true;
  if (!turn_.armed()) turn_.arm(loop_->now());
}

void ChannelReader::read_now(ChannelId id) {
  const auto channel = channels_.find(id);
  if (channel == channels_.end()) return;
  ReadOutcome found =
      ReadOutcome::kMore;  // limited: a process that the worker left may write without end
  for (int reads = 0;
       reads < kReadsMax && (found == ReadOutcome::kMore || found == ReadOutcome::kSome); ++reads) {
    std::size_t count = 0;
    found = read_some(channel->second.get(), &count);
  }
}

void ChannelReader::close(ChannelId id) {
  const auto channel = channels_.find(id);
  if (channel == channels_.end()) return;
  channel->second->is_closing = true;
  turn_.arm(loop_->now());
}

void ChannelReader::resume() {
  if (!std::exchange(is_paused_, false)) return;
  turn_.arm(loop_->now());
}

void ChannelReader::read_turn() {
  bool has_more = false;
  bool has_some = false;
  std::vector<ChannelId> ended;
  for (const auto& [id, channel] : channels_) {
    if (channel->is_closing) {
      read_now(id);
      ended.push_back(id);
      continue;
    }
    if (!channel->is_unread || (is_paused_ && channel->is_pausable)) continue;
    const ReadOutcome found = read_lines(channel.get());
    has_more = has_more || found == ReadOutcome::kMore;
    has_some = has_some || found == ReadOutcome::kSome;
    if (found == ReadOutcome::kEnd) ended.push_back(id);
    if (found == ReadOutcome::kNothing) {
      channel->is_unread = false;
      channel->watch.modify(kWatched);
    }
  }
  if (has_more || has_some) {
    turn_.arm(has_more ? loop_->now() : add_saturating(loop_->now(), kReadInterval));
  }
  for (const ChannelId id : ended) {
    channels_.erase(id);
    observer_->on_closed(id);
  }
}

// A piece ends inside a line if the channel was full; then the rest of the line follows it.
ChannelReader::ReadOutcome ChannelReader::read_lines(Channel* channel) {
  std::size_t count = 0;
  ReadOutcome found = ReadOutcome::kMore;
  for (int reads = 0; reads < kReadsPerTurn && found == ReadOutcome::kMore; ++reads) {
    if (reads > 0 && is_paused_ && channel->is_pausable) break;
    found = read_some(channel, &count);
  }
  return found == ReadOutcome::kSome && count >= kManyBytes ? ReadOutcome::kMore : found;
}

ChannelReader::ReadOutcome ChannelReader::read_some(Channel* channel, std::size_t* count) {
  const ssize_t got = ::read(channel->fd.get(), buffer_.data(), buffer_.size());
  if (got < 0 && errno == EINTR) return ReadOutcome::kMore;
  if (got < 0 && errno == EAGAIN) return ReadOutcome::kNothing;
  if (got <= 0) return ReadOutcome::kEnd;  // EIO: a pseudo-terminal without a writer
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(got));
  *count += bytes.size();
  observer_->on_bytes(channel->id, bytes);
  return bytes.size() >= kFullBytes ? ReadOutcome::kMore : ReadOutcome::kSome;
}

}  // namespace elastic::os
