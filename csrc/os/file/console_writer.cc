#include "os/file/console_writer.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "os/loop/event_loop.h"
#include "os/loop/wait.h"

// Theory of operation. The descriptors are shared with other programs, so they cannot be made
// non-blocking. Instead the thread waits in poll() for space and for the notifier that stops it,
// and then writes at most PIPE_BUF bytes: a pipe that is writable for poll() accepts that many at
// once and atomically. A write contains whole lines, so lines of other writers to the same pipe
// cannot split them. A file accepts a whole piece at once, without poll(). A terminal that is
// writable for poll() may have less space, and then the write blocks; so the thread shares the
// queue and can be abandoned.
//
// While nothing is queued, a short piece for a pipe is written without the thread: each change of
// threads delays a line on a busy machine, and costs more than the write. A pipe accepts RWF_NOWAIT
// since Linux 6.4. A file is left to the thread on every file system: a server may not respond, and
// a local disk may be frozen for a snapshot, be throttled or full, and RWF_NOWAIT does not help
// (Linux waits for a frozen file system before it looks at the flag). Instead the thread collects
// the lines of some milliseconds, so that most lines cost no change of threads and no write. It
// also finds out what a descriptor is, because fstat() may wait for a server.
//
// The thread reports what it has written only while the owner waits for it: the owner's loop need
// not wake for each line.

namespace elastic::os {
namespace {

constexpr std::size_t kWriteBytesMax = PIPE_BUF;
// Lines for one descriptor are collected into pieces of at most this size.
constexpr std::size_t kPieceBytesMax = 64 * 1024;
// After a write to a file, lines are collected for so long.
constexpr Duration kCollectTime = std::chrono::milliseconds(10);
constexpr Duration kJoinTimeout = std::chrono::seconds(1);
constexpr Duration kStallTimeout = std::chrono::seconds(10);

}  // namespace

class ConsoleWriter::Queue {
 public:
  static Result<std::shared_ptr<Queue>> create() {
    Result<Notifier> stop = Notifier::create();
    if (!stop.ok()) return stop.status();
    Result<Notifier> progress = Notifier::create();
    if (!progress.ok()) return progress.status();
    return std::shared_ptr<Queue>(new Queue(*std::move(stop), *std::move(progress)));
  }

  // For the owner.
  int progress_fd() const { return progress_.fd(); }
  void clear_progress() { progress_.clear(); }
  // True: progress_fd() becomes readable after each write, and now.
  void report_progress(bool is_wanted) {
    if (reports_progress_.exchange(is_wanted) || !is_wanted) return;
    progress_.notify();
    { const std::lock_guard lock(mutex_); }  // the thread waits, or sees the flag
    has_work_.notify_one();
  }
  std::size_t pending_bytes() const { return pending_bytes_; }
  // Those since the last call.
  void take_errors(const OnError& take) {
    for (auto& [fd, target] : targets_) {
      if (const int error = target.error.exchange(0); error != 0) take(fd, error);
    }
  }
  // Whether all of it was written at once.
  bool push(int fd, std::string_view lines);
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    has_work_.notify_one();
    stop_.notify();
  }

  // For the thread; returns after stop().
  void run();

 private:
  enum class Kind : std::uint8_t { kUnknown, kPipe, kFile, kOther };
  struct Target {
    explicit Target(int number) : fd(number) {}
    const int fd;
    std::atomic<Kind> kind{Kind::kUnknown};  // set by the thread
    std::atomic<int> error{0};               // set by the thread, once
    bool has_failed = false;                 // for the thread
  };
  struct Piece {
    Target* target = nullptr;
    std::string bytes;
  };

  Queue(Notifier stop, Notifier progress)
      : stop_(std::move(stop)), progress_(std::move(progress)) {}
  static Kind kind_of(int fd);
  std::size_t write_now(const Target& target, std::string_view bytes) const;
  void add(Target* target, std::string_view lines);
  bool take(Piece* piece);
  bool write_out(const Piece& piece);
  void collect();
  bool wait_writable(int fd);

  Notifier stop_;                  // ends the thread's wait for space
  Notifier progress_;              // to the loop
  std::map<int, Target> targets_;  // by descriptor; the owner adds, the thread has pointers
  std::atomic<bool> reports_progress_{false};
  std::atomic<std::size_t> pending_bytes_{0};
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;
  std::condition_variable has_work_;  // something is queued, progress is wanted, or stop
  std::deque<Piece> pieces_;          // guarded by mutex_
  bool awaits_work_ = false;          // guarded by mutex_: the thread waits for a piece
};

Result<std::unique_ptr<ConsoleWriter>> ConsoleWriter::start(EventLoop* loop,
                                                            std::size_t pending_max,
                                                            std::function<void()> on_space,
                                                            OnError on_error) {
  Result<std::shared_ptr<Queue>> queue = Queue::create();
  if (!queue.ok()) return queue.status();
  std::unique_ptr<ConsoleWriter> writer(
      new ConsoleWriter(loop, pending_max, std::move(on_space), std::move(on_error), *queue));
  Result<Watch> watch = loop->watch((*queue)->progress_fd(), EPOLLIN, writer.get());
  if (!watch.ok()) return watch.status();
  writer->watch_ = std::move(*watch);

  Result<DetachableThread> thread =
      DetachableThread::start("elastic-console", [queue = *queue] { queue->run(); });
  if (!thread.ok()) return thread.status();
  writer->thread_.emplace(*std::move(thread));
  return writer;
}

ConsoleWriter::ConsoleWriter(EventLoop* loop, std::size_t pending_max,
                             std::function<void()> on_space, OnError on_error,
                             std::shared_ptr<Queue> queue)
    : loop_(loop),
      pending_max_(pending_max),
      on_space_(std::move(on_space)),
      on_error_(std::move(on_error)),
      queue_(std::move(queue)),
      end_timer_(loop, [this] { std::exchange(done_, nullptr)(); }) {}

ConsoleWriter::~ConsoleWriter() {
  if (!thread_) return;
  queue_->stop();
  thread_->join_within(kJoinTimeout);
}

void ConsoleWriter::push(int fd, std::string_view lines) {
  if (queue_->push(fd, lines) && done_) note_progress();
  if (pending_bytes() <= pending_max_) return;
  is_full_ = true;
  queue_->report_progress(true);
}

std::size_t ConsoleWriter::next_write(std::string_view bytes) {
  if (bytes.size() <= kWriteBytesMax) return bytes.size();
  const std::size_t end = bytes.find_last_of("\n\r", kWriteBytesMax - 1);
  return end == std::string_view::npos ? kWriteBytesMax : end + 1;
}

std::size_t ConsoleWriter::pending_bytes() const { return queue_->pending_bytes(); }

void ConsoleWriter::finish(std::function<void()> done) {
  done_ = std::move(done);
  queue_->report_progress(true);
  note_progress();
}

void ConsoleWriter::close_input() {
  if (!done_) return;
  is_closed_ = true;
  note_progress();
}

void ConsoleWriter::on_ready(std::uint32_t) {
  queue_->clear_progress();
  if (on_error_) queue_->take_errors(on_error_);
  if (done_) note_progress();
  if (!is_full_ || pending_bytes() > pending_max_ / 2) return;
  is_full_ = false;
  queue_->report_progress(done_ != nullptr);
  on_space_();
}

// The end comes from the timer, because `done` may destroy the writer.
void ConsoleWriter::note_progress() {
  const bool is_over = is_closed_ && pending_bytes() == 0;
  end_timer_.arm(add_saturating(loop_->now(), is_over ? Duration::zero() : kStallTimeout));
}

bool ConsoleWriter::Queue::push(int fd, std::string_view lines) {
  Target& target = targets_.try_emplace(fd, fd).first->second;
  lines.remove_prefix(write_now(target, lines));
  if (lines.empty()) return true;
  add(&target, lines);
  return false;
}

// How many bytes were written without blocking.
std::size_t ConsoleWriter::Queue::write_now(const Target& target, std::string_view bytes) const {
  const bool can = target.kind == Kind::kPipe;
  if (!can || pending_bytes() > 0 || bytes.size() > kWriteBytesMax) return 0;
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  const ssize_t put = ::pwritev2(target.fd, &piece, 1, -1, RWF_NOWAIT);
  return put < 0 ? 0 : static_cast<std::size_t>(put);
}

void ConsoleWriter::Queue::add(Target* target, std::string_view lines) {
  pending_bytes_ += lines.size();
  bool is_awaited = false;
  {
    const std::lock_guard lock(mutex_);
    is_awaited = std::exchange(awaits_work_, false);
    if (pieces_.empty() || pieces_.back().target != target ||
        pieces_.back().bytes.size() + lines.size() > kPieceBytesMax) {
      pieces_.push_back({target, std::string(lines)});
    } else {
      pieces_.back().bytes += lines;
    }
  }
  if (is_awaited) has_work_.notify_one();
}

void ConsoleWriter::Queue::run() {
  Piece piece;
  while (take(&piece)) {
    if (!write_out(piece)) return;
    if (piece.target->kind == Kind::kFile) collect();
  }
}

// Lets lines for a file accumulate, unless the owner waits for them.
void ConsoleWriter::Queue::collect() {
  std::unique_lock lock(mutex_);
  if (!pieces_.empty()) return;
  has_work_.wait_for(lock, kCollectTime, [this] { return is_stopping_ || reports_progress_; });
}

ConsoleWriter::Queue::Kind ConsoleWriter::Queue::kind_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Kind::kOther;
  if (S_ISFIFO(info.st_mode)) return Kind::kPipe;
  return S_ISREG(info.st_mode) ? Kind::kFile : Kind::kOther;
}

// Waits for a piece; false when the writer is being stopped.
bool ConsoleWriter::Queue::take(Piece* piece) {
  std::unique_lock lock(mutex_);
  awaits_work_ = pieces_.empty();
  has_work_.wait(lock, [this] { return is_stopping_ || !pieces_.empty(); });
  awaits_work_ = false;
  if (is_stopping_) return false;
  *piece = std::move(pieces_.front());
  pieces_.pop_front();
  return true;
}

// False when the writer is being stopped. If the descriptor fails, the piece is dropped.
bool ConsoleWriter::Queue::write_out(const Piece& piece) {
  const int fd = piece.target->fd;
  if (piece.target->kind == Kind::kUnknown) piece.target->kind = kind_of(fd);
  const Kind kind = piece.target->kind;
  const bool is_file = kind == Kind::kFile;
  std::string_view left = piece.bytes;
  while (!left.empty()) {
    if (is_file ? is_stopping_.load() : !wait_writable(fd)) return false;
    const ssize_t put = ::write(fd, left.data(), is_file ? left.size() : next_write(left));
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put < 0 && errno != EPIPE && !std::exchange(piece.target->has_failed, true)) {
      piece.target->error = errno;
      progress_.notify();
    }
    const std::size_t gone = put < 0 ? left.size() : static_cast<std::size_t>(put);
    left.remove_prefix(gone);
    pending_bytes_ -= gone;
    if (reports_progress_) progress_.notify();
  }
  return true;
}

// Waits for space or for an error that write() reports; false when the writer is being stopped.
bool ConsoleWriter::Queue::wait_writable(int fd) {
  pollfd items[] = {{fd, POLLOUT, 0}, {stop_.fd(), POLLIN, 0}};
  while (!is_stopping_) {
    ::poll(items, 2, -1);
    if (items[0].revents != 0) return !is_stopping_;
  }
  return false;
}

}  // namespace elastic::os
