#include "os/file/log_pipes.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "os/base/posix_error.h"

// Theory of operation. The loop watches an idle pipe. A pipe that has become readable is not
// watched any more, but read at intervals, until a read finds nothing.
//
// The pipe is open for reading and writing, so that it never ends: a worker may be started a second
// time, when the process that should have forked it has died.

namespace elastic::os {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;
// More than a busy worker writes in an interval. The default of 64 KiB remains if this is refused.
constexpr int kPipeBytes = 256 * 1024;
constexpr std::size_t kManyBytes = kPipeBytes / 4;  // read again without a pause
constexpr int kReadsMax = 64;

}  // namespace

struct LogPipes::Pipe final : EventLoop::FdHandler {
  Pipe(LogPipes* owner_pipes, PipeId pipe_id, std::string pipe_path, RotatingFile log)
      : owner(owner_pipes), id(pipe_id), path(std::move(pipe_path)), file(std::move(log)) {}
  ~Pipe() override { ::unlink(path.c_str()); }
  void on_ready(std::uint32_t) override { owner->mark_unread(this); }

  LogPipes* const owner;
  const PipeId id;
  const std::string path;
  RotatingFile file;
  UniqueFd fd;
  bool is_unread = false;   // read in the next turn; not watched
  bool is_closing = false;  // reads to the end, then it is removed
  bool has_reported = false;
  EventLoop::Watch watch;
};

LogPipes::LogPipes(EventLoop* loop, LogTail::Observer* observer,
                   std::function<void(const Status&)> report)
    : loop_(loop),
      observer_(observer),
      report_(std::move(report)),
      buffer_(kReadBytes, '\0'),
      turn_(loop, [this] { read_turn(); }) {}

LogPipes::~LogPipes() = default;

Result<LogPipes::PipeId> LogPipes::follow(const std::string& pipe_path, RotatingFile file) {
  if (::mkfifo(pipe_path.c_str(), 0600) != 0) {
    return posix_error("cannot create the pipe " + pipe_path, errno);
  }
  auto pipe = std::make_unique<Pipe>(this, last_id_ - 1, pipe_path, std::move(file));
  pipe->fd.reset(::open(pipe_path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!pipe->fd.valid()) return posix_error("cannot open the pipe " + pipe_path, errno);
  ::fcntl(pipe->fd.get(), F_SETPIPE_SZ, kPipeBytes);
  Result<EventLoop::Watch> watch = loop_->watch(pipe->fd.get(), EPOLLIN, pipe.get());
  if (!watch.ok()) return watch.status();
  pipe->watch = *std::move(watch);
  const PipeId id = --last_id_;
  pipes_[id] = std::move(pipe);
  return id;
}

void LogPipes::mark_unread(Pipe* pipe) {
  pipe->is_unread = true;
  pipe->watch.modify(0);
  if (!turn_.armed() && !is_paused_) turn_.arm(loop_->now());
}

void LogPipes::read_now(PipeId id) {
  const auto pipe = pipes_.find(id);
  if (pipe == pipes_.end()) return;
  int reads = 0;  // limited: a process that the worker left may write without end
  while (++reads <= kReadsMax && read_some(pipe->second.get()) != Found::kNothing) {
  }
}

void LogPipes::close(PipeId id) {
  const auto pipe = pipes_.find(id);
  if (pipe == pipes_.end()) return;
  pipe->second->is_closing = true;
  turn_.arm(loop_->now());
}

void LogPipes::resume() {
  if (!std::exchange(is_paused_, false)) return;
  turn_.arm(loop_->now());
}

void LogPipes::read_turn() {
  bool has_more = false;
  bool has_some = false;
  std::vector<PipeId> ended;
  for (const auto& [id, pipe] : pipes_) {
    if (pipe->is_closing) {
      read_now(id);
      ended.push_back(id);
      continue;
    }
    if (!pipe->is_unread || is_paused_) continue;
    const Found found = read_some(pipe.get());
    has_more = has_more || found == Found::kMore;
    has_some = has_some || found == Found::kSome;
    if (found == Found::kNothing) {
      pipe->is_unread = false;
      pipe->watch.modify(EPOLLIN);
    }
  }
  if (has_more || has_some) {
    turn_.arm(has_more ? loop_->now() : add_saturating(loop_->now(), kReadInterval));
  }
  for (const PipeId id : ended) {
    pipes_.erase(id);
    observer_->on_closed(id);
  }
}

LogPipes::Found LogPipes::read_some(Pipe* pipe) {
  const ssize_t got = ::read(pipe->fd.get(), buffer_.data(), buffer_.size());
  if (got < 0 && errno == EINTR) return Found::kMore;
  if (got <= 0) return Found::kNothing;
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(got));
  if (const Status status = pipe->file.write(bytes); !status.ok() && !pipe->has_reported) {
    pipe->has_reported = true;
    report_(status);
  }
  observer_->on_bytes(pipe->id, bytes);
  return bytes.size() >= kManyBytes ? Found::kMore : Found::kSome;
}

}  // namespace elastic::os
