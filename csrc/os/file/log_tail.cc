#include "os/file/log_tail.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "os/base/posix_error.h"
#include "os/loop/event_loop.h"

// Theory of operation. inotify reports that an idle file changed; it is read at once, and added to
// `unread_`. Each turn reads a bounded piece of each file in that set, so that a worker that writes
// without end does not delay other handlers. If a file was read to its end, the next turn follows
// after kReadInterval. After kEmptyTurns turns that found nothing new in a file, inotify is armed,
// and the file is read once more, because it may have grown in between; then it leaves the set.
// Arming at once would cost an event with each burst of a busy worker.
//
// Without inotify (fs.inotify.max_user_instances and max_user_watches are limits of the user, over
// all processes) an idle file stays in the set and is read every kPollInterval.

namespace elastic::os {
namespace {

constexpr std::size_t kTailReadBytes = 64 * 1024;
constexpr std::size_t kEventBytes = 16 * 1024;
constexpr int kEmptyTurns = 4;
constexpr Duration kPollInterval = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<LogTail>> LogTail::create(EventLoop* loop, Observer* observer) {
  UniqueFd inotify(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  std::unique_ptr<LogTail> tail(new LogTail(loop, observer, std::move(inotify)));
  if (!tail->inotify_.valid()) return tail;
  Result<Watch> watch = loop->watch(tail->inotify_.get(), EPOLLIN, tail.get());
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
  File file;
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.fd.valid()) return posix_error("cannot open " + path, errno);
  const FileId id = ++last_id_;
  file.must_arm = !arm(id, &file);
  files_[id] = std::move(file);
  unread_.insert(id);
  turn_.arm(loop_->now());
  return id;
}

// IN_ONESHOT: the event ends the watch.
bool LogTail::arm(FileId id, File* file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file->fd.get());
  file->watch = ::inotify_add_watch(inotify_.get(), path.c_str(), IN_MODIFY | IN_ONESHOT);
  if (file->watch < 0) return false;
  watched_[file->watch] = id;
  return true;
}

// The number of watches is limited for each user.
void LogTail::disarm(File* file) {
  if (file->watch < 0) return;
  ::inotify_rm_watch(inotify_.get(), file->watch);
  watched_.erase(std::exchange(file->watch, -1));
}

void LogTail::close(FileId id) {
  const auto file = files_.find(id);
  if (file == files_.end()) return;
  struct stat info {};
  was_truncated(&file->second);
  const bool is_known = ::fstat(file->second.fd.get(), &info) == 0;
  file->second.end = is_known ? static_cast<std::uint64_t>(info.st_size) : 0;
  unread_.insert(id);
  turn_.arm(loop_->now());
}

void LogTail::resume() {
  if (!std::exchange(is_paused_, false)) return;  // the armed turn reads larger pieces
  if (!unread_.empty()) turn_.arm(loop_->now());
}

void LogTail::on_ready(std::uint32_t) {
  alignas(inotify_event) std::array<char, kEventBytes> buffer;
  const ssize_t got = ::read(inotify_.get(), buffer.data(), buffer.size());
  std::set<FileId> grown;
  std::size_t offset = 0;
  while (got > 0 && offset < static_cast<std::size_t>(got)) {
    inotify_event event;
    std::memcpy(&event, buffer.data() + offset, sizeof event);
    offset += sizeof event + event.len;
    const auto watched = watched_.find(event.wd);
    if ((event.mask & IN_Q_OVERFLOW) != 0) {
      for (const auto& [id, file] : files_) grown.insert(id);
    } else if (watched != watched_.end()) {
      grown.insert(watched->second);
      if ((event.mask & IN_IGNORED) != 0) {
        const auto file = files_.find(watched->second);
        if (file != files_.end() && file->second.watch == event.wd) file->second.watch = -1;
        watched_.erase(watched);
      }
    }
  }
  for (const FileId id : grown) {
    const auto file = files_.find(id);
    if (file == files_.end()) continue;
    file->second.must_arm = true;
    unread_.erase(id);  // read() adds it again
  }
  read(grown);
}

void LogTail::read_turn() { read(std::exchange(unread_, {})); }

void LogTail::read(const std::set<FileId>& turn) {
  bool has_more = false;
  bool is_idle = true;  // all files that are left have no watch
  for (const FileId id : turn) {
    const auto known = files_.find(id);
    if (known == files_.end()) continue;
    File& file = known->second;
    const ReadOutcome found = is_paused_ ? ReadOutcome::kMore : read_some(id, &file);
    if (found == ReadOutcome::kEnd && file.end) {
      disarm(&file);
      files_.erase(known);
      const core::CallGuard::Scope calling(&guard_);
      observer_->on_closed(id);
    } else if (found == ReadOutcome::kEnd && file.must_arm && file.empty_turns + 1 < kEmptyTurns) {
      ++file.empty_turns;
      unread_.insert(id);
      is_idle = false;
    } else if (found == ReadOutcome::kEnd && file.must_arm) {
      file.must_arm = !arm(id, &file);  // without a watch: read again later
      unread_.insert(id);
      has_more = has_more || !file.must_arm;
    } else if (found != ReadOutcome::kEnd) {
      is_idle = false;
      file.must_arm = true;
      file.empty_turns = 0;
      unread_.insert(id);
      has_more = has_more || found == ReadOutcome::kMore;
    }
  }
  if (unread_.empty() || is_paused_) return;
  if (has_more) {
    turn_.arm(loop_->now());
  } else if (!turn_.armed()) {
    turn_.arm(add_saturating(loop_->now(), is_idle ? kPollInterval : kReadInterval));
  }
}

// logrotate's copytruncate empties a file that its writer continues: it is read from its beginning.
bool LogTail::was_truncated(File* file) {
  struct stat info {};
  if (::fstat(file->fd.get(), &info) != 0) return false;
  if (static_cast<std::uint64_t>(info.st_size) >= file->offset) return false;
  ::lseek(file->fd.get(), 0, SEEK_SET);
  file->offset = 0;
  return true;
}

// An error counts as the end of the file: it cannot be read further, and the log file itself keeps
// the worker's output.
LogTail::ReadOutcome LogTail::read_some(FileId id, File* file) {
  if (file->end && file->offset >= *file->end) return ReadOutcome::kEnd;
  std::array<char, kTailReadBytes> buffer;
  const ssize_t got = ::read(file->fd.get(), buffer.data(), buffer.size());
  if (got < 0 && errno == EINTR) return ReadOutcome::kMore;
  if (got <= 0) return got == 0 && was_truncated(file) ? ReadOutcome::kMore : ReadOutcome::kEnd;
  file->offset += static_cast<std::uint64_t>(got);
  const core::CallGuard::Scope calling(&guard_);
  observer_->on_bytes(id, {buffer.data(), static_cast<std::size_t>(got)});
  const bool was_full = static_cast<std::size_t>(got) == buffer.size();
  return was_full || file->end ? ReadOutcome::kMore : ReadOutcome::kSome;
}

}  // namespace elastic::os
