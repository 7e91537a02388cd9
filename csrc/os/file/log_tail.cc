#include "os/file/log_tail.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "os/base/posix_error.h"

// Theory of operation. inotify reports that a file changed; the file is added to `unread_`, and
// reading continues until that set is empty. Each iteration of the loop reads a bounded piece of
// each file, so that a worker that writes without end does not delay other handlers. A file leaves
// the set when read() returns its end; later writes cause a new event.

namespace elastic::os {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kEventBytes = 16 * 1024;

}  // namespace

Result<std::unique_ptr<LogTail>> LogTail::create(EventLoop* loop, Observer* observer) {
  UniqueFd inotify(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!inotify.valid()) return posix_error("cannot follow files (inotify)", errno);
  std::unique_ptr<LogTail> tail(new LogTail(loop, observer, std::move(inotify)));
  Result<EventLoop::Watch> watch = loop->watch(tail->inotify_.get(), EPOLLIN, tail.get());
  if (!watch.ok()) return watch.status();
  tail->watch_ = std::move(*watch);
  return tail;
}

LogTail::LogTail(EventLoop* loop, Observer* observer, UniqueFd inotify)
    : loop_(loop),
      observer_(observer),
      inotify_(std::move(inotify)),
      turn_(loop, [this] { read_turn(); }) {}

LogTail::~LogTail() = default;

Result<LogTail::FileId> LogTail::follow(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return posix_error("cannot open " + path, errno);
  const int id = ::inotify_add_watch(inotify_.get(), path.c_str(), IN_MODIFY);
  if (id < 0) return posix_error("cannot follow " + path, errno);
  files_[id].fd = std::move(fd);
  return id;
}

void LogTail::close(FileId id) {
  const auto file = files_.find(id);
  if (file == files_.end()) return;
  struct stat info {};
  const bool is_known = ::fstat(file->second.fd.get(), &info) == 0;
  file->second.end = is_known ? static_cast<std::uint64_t>(info.st_size) : 0;
  unread_.insert(id);
  turn_.arm(loop_->now());
}

void LogTail::resume() {
  is_paused_ = false;
  if (!unread_.empty()) turn_.arm(loop_->now());
}

void LogTail::on_ready(std::uint32_t) {
  alignas(inotify_event) std::array<char, kEventBytes> buffer;
  const ssize_t got = ::read(inotify_.get(), buffer.data(), buffer.size());
  std::size_t offset = 0;
  while (got > 0 && offset < static_cast<std::size_t>(got)) {
    inotify_event event;
    std::memcpy(&event, buffer.data() + offset, sizeof event);
    offset += sizeof event + event.len;
    if ((event.mask & IN_Q_OVERFLOW) != 0) {
      for (const auto& [id, file] : files_) unread_.insert(id);
    } else if (files_.count(event.wd) != 0) {
      unread_.insert(event.wd);
    }
  }
  read_turn();
}

void LogTail::read_turn() {
  if (is_paused_) return;
  const std::set<FileId> turn = std::exchange(unread_, {});
  for (const FileId id : turn) {
    File& file = files_.at(id);
    if (is_paused_ || read_some(id, &file) == Found::kMore) {
      unread_.insert(id);
    } else if (file.end) {
      ::inotify_rm_watch(inotify_.get(), id);
      files_.erase(id);
      observer_->on_closed(id);
    }
  }
  if (!unread_.empty() && !is_paused_) turn_.arm(loop_->now());
}

// An error counts as the end of the file: it cannot be read further, and the log file itself keeps
// the worker's output.
LogTail::Found LogTail::read_some(FileId id, File* file) {
  if (file->end && file->offset >= *file->end) return Found::kEnd;
  std::array<char, kReadBytes> buffer;
  const ssize_t got = ::read(file->fd.get(), buffer.data(), buffer.size());
  if (got < 0 && errno == EINTR) return Found::kMore;
  if (got <= 0) return Found::kEnd;
  file->offset += static_cast<std::uint64_t>(got);
  observer_->on_bytes(id, {buffer.data(), static_cast<std::size_t>(got)});
  const bool was_full = static_cast<std::size_t>(got) == buffer.size();
  return was_full || file->end ? Found::kMore : Found::kEnd;
}

}  // namespace elastic::os
