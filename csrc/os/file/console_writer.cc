#include "os/file/console_writer.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "os/loop/wait.h"

// Theory of operation. The descriptors are shared with other programs, so they cannot be made
// non-blocking. Instead the thread waits in poll() for space and for the notifier that stops it,
// and then writes at most PIPE_BUF bytes: a pipe that is writable for poll() accepts that many at
// once and atomically. A write contains whole lines, so lines of other writers to the same pipe
// cannot split them. A file accepts a whole piece at once. A terminal that is writable for poll()
// may have less space, and then the write blocks; so the thread shares the queue and can be
// abandoned.
//
// A pipe accepts RWF_NOWAIT since Linux 6.4, so a short piece is written without the thread while
// nothing is queued: each change of threads delays a line on a busy machine.

namespace elastic::os {
namespace {

constexpr std::size_t kWriteBytesMax = PIPE_BUF;
// Lines for one descriptor are collected into pieces of at most this size.
constexpr std::size_t kPieceBytesMax = 64 * 1024;
constexpr Duration kJoinTimeout = std::chrono::seconds(1);

bool is_pipe(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode);
}

// How many bytes were written without blocking; 0 also if the pipe cannot be written so.
std::size_t write_now(int fd, std::string_view bytes) {
  if (bytes.size() > kWriteBytesMax) return 0;
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  const ssize_t put = ::pwritev2(fd, &piece, 1, -1, RWF_NOWAIT);
  return put < 0 ? 0 : static_cast<std::size_t>(put);
}

}  // namespace

class ConsoleWriter::Queue {
 public:
  static Result<std::shared_ptr<Queue>> create() {
    Result<Notifier> wakeup = Notifier::create();
    if (!wakeup.ok()) return wakeup.status();
    Result<Notifier> progress = Notifier::create();
    if (!progress.ok()) return progress.status();
    return std::shared_ptr<Queue>(new Queue(*std::move(wakeup), *std::move(progress)));
  }

  // For the owner.
  int progress_fd() const { return progress_.fd(); }
  void clear_progress() { progress_.clear(); }
  std::size_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }
  void push(int fd, std::string_view lines);
  void stop() {
    is_stopping_ = true;
    wakeup_.notify();
  }

  // For the thread; returns after stop().
  void run();

 private:
  struct Piece {
    int fd = -1;
    std::string bytes;
  };

  Queue(Notifier wakeup, Notifier progress)
      : wakeup_(std::move(wakeup)), progress_(std::move(progress)) {}
  bool take(Piece* piece);
  bool write_out(const Piece& piece);
  bool wait_writable(int fd);

  Notifier wakeup_;    // to the thread: something is queued, or stop
  Notifier progress_;  // to the loop
  std::atomic<std::size_t> pending_bytes_{0};
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;
  std::deque<Piece> pieces_;  // guarded by mutex_
};

Result<std::unique_ptr<ConsoleWriter>> ConsoleWriter::start(EventLoop* loop,
                                                            std::function<void()> on_progress) {
  Result<std::shared_ptr<Queue>> queue = Queue::create();
  if (!queue.ok()) return queue.status();
  std::unique_ptr<ConsoleWriter> writer(new ConsoleWriter(std::move(on_progress), *queue));
  Result<EventLoop::Watch> watch = loop->watch((*queue)->progress_fd(), EPOLLIN, writer.get());
  if (!watch.ok()) return watch.status();
  writer->watch_ = std::move(*watch);

  Result<DetachableThread> thread =
      DetachableThread::start("elastic-console", [queue = *queue] { queue->run(); });
  if (!thread.ok()) return thread.status();
  writer->thread_.emplace(*std::move(thread));
  return writer;
}

ConsoleWriter::ConsoleWriter(std::function<void()> on_progress, std::shared_ptr<Queue> queue)
    : on_progress_(std::move(on_progress)), queue_(std::move(queue)) {}

ConsoleWriter::~ConsoleWriter() {
  if (!thread_) return;
  queue_->stop();
  thread_->join_within(kJoinTimeout);
}

void ConsoleWriter::push(int fd, std::string_view lines) {
  const auto [known, is_first] = is_pipe_.try_emplace(fd);
  if (is_first) known->second = is_pipe(fd);
  if (known->second && queue_->pending_bytes() == 0) lines.remove_prefix(write_now(fd, lines));
  if (!lines.empty()) queue_->push(fd, lines);
}

std::size_t ConsoleWriter::next_write(std::string_view bytes) {
  if (bytes.size() <= kWriteBytesMax) return bytes.size();
  const std::size_t end = bytes.find_last_of("\n\r", kWriteBytesMax - 1);
  return end == std::string_view::npos ? kWriteBytesMax : end + 1;
}

std::size_t ConsoleWriter::pending_bytes() const { return queue_->pending_bytes(); }

void ConsoleWriter::on_ready(std::uint32_t) {
  queue_->clear_progress();
  on_progress_();
}

void ConsoleWriter::Queue::push(int fd, std::string_view lines) {
  pending_bytes_ += lines.size();
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = pieces_.empty();
    if (was_empty || pieces_.back().fd != fd ||
        pieces_.back().bytes.size() + lines.size() > kPieceBytesMax) {
      pieces_.push_back({fd, std::string(lines)});
    } else {
      pieces_.back().bytes += lines;
    }
  }
  if (was_empty) wakeup_.notify();
}

void ConsoleWriter::Queue::run() {
  Piece piece;
  while (true) {
    if (take(&piece)) {
      if (!write_out(piece)) return;
      continue;
    }
    if (is_stopping_) return;
    (void)wakeup_.wait({});
  }
}

bool ConsoleWriter::Queue::take(Piece* piece) {
  const std::lock_guard lock(mutex_);
  if (pieces_.empty()) return false;
  *piece = std::move(pieces_.front());
  pieces_.pop_front();
  return true;
}

// False when the writer is being stopped. If the descriptor fails, the piece is dropped.
bool ConsoleWriter::Queue::write_out(const Piece& piece) {
  std::string_view left = piece.bytes;
  struct stat info {};
  const bool is_file = ::fstat(piece.fd, &info) == 0 && S_ISREG(info.st_mode);
  while (!left.empty()) {
    if (!wait_writable(piece.fd)) return false;
    const ssize_t put = ::write(piece.fd, left.data(), is_file ? left.size() : next_write(left));
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    const std::size_t gone = put < 0 ? left.size() : static_cast<std::size_t>(put);
    left.remove_prefix(gone);
    pending_bytes_ -= gone;
    if (!is_file || left.empty()) progress_.notify();
  }
  return true;
}

// Waits for space or for an error that write() reports; false when the writer is being stopped.
bool ConsoleWriter::Queue::wait_writable(int fd) {
  while (true) {
    if (is_stopping_) return false;
    pollfd items[] = {{fd, POLLOUT, 0}, {wakeup_.fd(), POLLIN, 0}};
    ::poll(items, 2, -1);
    if (items[1].revents != 0) wakeup_.clear();
    if (items[0].revents != 0) return !is_stopping_;
  }
}

}  // namespace elastic::os
