#include "host/workers/output_capture.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/workers/output_tail.h"
#include "os/file/console_writer.h"
#include "os/file/stream_channel.h"
#include "os/loop/clock.h"

// Theory of operation. The relay thread waits for readable channels, reads one, and writes the
// bytes before it reads again. It has no other buffer, so the channels fill while the console is
// slow.
//
// When a worker fails, its last lines are needed at once, while the thread may be blocked by the
// console. So the loop may read a channel, too: it appends the bytes to `unwritten`, which the
// thread writes before it reads further. Each stream has a lock, held for reading, never for
// writing. The streams of which nothing is copied are read also while the thread waits for the
// console.
//
// Waking a thread costs the writer several microseconds, more than the write itself. So after a
// small piece the thread does not wait on the channels for a moment: lines that follow at once are
// copied together, and their writes wake no thread.
//
// A channel ends when its last writer closes it. After a round the thread does not wait for that:
// all writers were killed, so all output has already arrived.

namespace elastic::host {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kTailReadBytesMax = 1024 * 1024;  // the default limit of a pipe's size
constexpr int kReadsPerTurn = 16;                       // of one stream, then the next one
constexpr int kEventsPerWait = 64;
// Parts of one traceback with chained exceptions arrive within this time.
constexpr Duration kTracebackGap = std::chrono::milliseconds(50);
constexpr std::string_view kTracebackHeader = "Traceback (most recent call last):";
// After a small piece the thread does not wait for the next one during this time.
constexpr int kPauseMs = 2;
constexpr std::size_t kSmallPieceBytes = 8 * 1024;
constexpr Duration kProgressTimeout = std::chrono::seconds(10);
constexpr Duration kJoinTimeout = std::chrono::seconds(1);

void raise(const os::UniqueFd& eventfd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(eventfd.get(), &one, sizeof one);
}

void lower(const os::UniqueFd& eventfd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(eventfd.get(), &count, sizeof count);
}

enum class Found : std::uint8_t { kMore, kSome, kNothing, kEnd };

}  // namespace

struct OutputCapture::Stream {
  std::uint64_t round = 0;
  bool is_terminal = false;
  bool is_hidden = false;  // nothing is copied
  std::mutex mutex;
  // Guarded by mutex.
  os::UniqueFd reader;
  core::OutputTail tail;
  std::optional<Instant> traceback_at;       // of the last traceback
  std::optional<Instant> last_traceback_at;  // of its last part, if exceptions are chained
  std::string unwritten;                     // read and not written yet
  bool is_closing = false;

  // REQUIRES: mutex is held. Adds the number of bytes to `count`.
  Found read_some(std::size_t* count) {
    char bytes[kReadBytes];
    const ssize_t got = ::read(reader.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return Found::kSome;
    if (got < 0 && errno == EAGAIN) return Found::kNothing;
    if (got <= 0) return Found::kEnd;  // EIO: a pseudo-terminal without a writer
    *count += static_cast<std::size_t>(got);
    const std::string_view read(bytes, static_cast<std::size_t>(got));
    tail.append(read);
    note_traceback(read.size());
    if (!is_hidden) unwritten += read;
    return read.size() == sizeof bytes ? Found::kMore : Found::kSome;
  }

  // Searches the new bytes, and those before them in which a traceback may have begun.
  void note_traceback(std::size_t new_bytes) {
    std::string_view recent = tail.bytes();
    const std::size_t searched = std::min(recent.size(), new_bytes + kTracebackHeader.size() - 1);
    recent.remove_prefix(recent.size() - searched);
    if (::memmem(recent.data(), recent.size(), kTracebackHeader.data(), kTracebackHeader.size()) ==
        nullptr) {
      return;
    }
    const Instant now = os::monotonic_now();
    if (!last_traceback_at || now - *last_traceback_at > kTracebackGap) traceback_at = now;
    last_traceback_at = now;
  }
};

class OutputCapture::Relay {
 public:
  static std::shared_ptr<Relay> create(os::EventLoop* replies, std::function<void()> on_drained) {
    auto relay = std::make_shared<Relay>();
    relay->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    relay->hidden_.reset(::epoll_create1(EPOLL_CLOEXEC));
    relay->wakeup_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    relay->stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    relay->replies_ = replies;
    relay->on_drained_ = std::move(on_drained);
    const bool is_open = relay->epoll_.valid() && relay->hidden_.valid() &&
                         relay->wakeup_.valid() && relay->stop_.valid() &&
                         watch(relay->epoll_, relay->hidden_.get(), kHidden) &&
                         watch(relay->epoll_, relay->wakeup_.get(), kWakeup) &&
                         watch(relay->epoll_, relay->stop_.get(), kWakeup);
    return is_open ? relay : nullptr;
  }

  // For the owner.
  bool add(const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t id = ++last_id_;
    if (!watch(epoll_of(*stream), stream->reader.get(), id)) return false;
    streams_[id] = stream;
    return true;
  }
  // Drops the rest of earlier rounds, which a blocked console has not accepted.
  void discard_before(std::uint64_t round) {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [this, round](const auto& item) {
      if (item.second->round >= round) return false;
      const std::lock_guard stream_lock(item.second->mutex);
      unwatch(item.second.get());
      return true;
    });
  }
  void wake() { raise(wakeup_); }
  void drain() {
    is_draining_ = true;
    wake();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      replies_ = nullptr;
    }
    is_stopping_ = true;
    raise(stop_);
  }
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

  // For the thread; returns after stop().
  void run();

 private:
  static constexpr std::uint64_t kWakeup = 0;
  static constexpr std::uint64_t kHidden = 1;

  static bool watch(const os::UniqueFd& epoll, int fd, std::uint64_t id) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id;
    return ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  const os::UniqueFd& epoll_of(const Stream& stream) const {
    return stream.is_hidden ? hidden_ : epoll_;
  }
  // Not by closing it: a process that the program forked may hold a copy, and its events would come
  // without end.
  void unwatch(Stream* stream) const {
    ::epoll_ctl(epoll_of(*stream).get(), EPOLL_CTL_DEL, stream->reader.get(), nullptr);
    stream->reader.reset();
  }
  std::shared_ptr<Stream> find(std::uint64_t id);
  std::vector<std::uint64_t> all();
  void remove(std::uint64_t id);
  void serve(std::uint64_t id);
  void serve_hidden();
  void serve_hidden(std::uint64_t id, Stream* stream);
  void write_out(std::string_view bytes);
  void check_drained();
  void pause();

  os::UniqueFd epoll_;
  os::UniqueFd hidden_;  // epoll, within the other one: the streams of which nothing is copied
  os::UniqueFd wakeup_;  // eventfd: check every stream
  os::UniqueFd stop_;    // eventfd
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_draining_{false};
  std::atomic<std::uint64_t> copied_bytes_{0};  // bytes

  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::uint64_t, std::shared_ptr<Stream>> streams_;  // in the order of their rounds
  std::uint64_t last_id_ = kHidden;
  os::EventLoop* replies_ = nullptr;  // null after the owner was destroyed
  std::function<void()> on_drained_;

  // Used by the thread.
  std::string piece_;             // the bytes that it writes
  std::size_t served_bytes_ = 0;  // since the last wait
};

void OutputCapture::Relay::run() {
  epoll_event events[kEventsPerWait];
  while (!is_stopping_) {
    const int ready = ::epoll_wait(epoll_.get(), events, kEventsPerWait, -1);
    bool is_woken = false;
    for (int i = 0; i < ready && !is_stopping_; ++i) {
      if (events[i].data.u64 == kWakeup) {
        is_woken = true;
      } else if (events[i].data.u64 == kHidden) {
        serve_hidden();
      } else {
        serve(events[i].data.u64);
      }
    }
    if (is_woken) {
      lower(wakeup_);
      for (const std::uint64_t id : all()) serve(id);
    }
    if (is_draining_) check_drained();
    if (served_bytes_ > 0 && served_bytes_ < kSmallPieceBytes) pause();
    served_bytes_ = 0;
  }
}

// Ends early if the owner wants something.
void OutputCapture::Relay::pause() {
  pollfd items[] = {{wakeup_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  ::poll(items, 2, kPauseMs);
}

std::shared_ptr<OutputCapture::Stream> OutputCapture::Relay::find(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

std::vector<std::uint64_t> OutputCapture::Relay::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> ids;
  ids.reserve(streams_.size());
  for (const auto& [id, stream] : streams_) ids.push_back(id);
  return ids;
}

// Reads one stream several times before the next one: a piece ends inside a line only if the buffer
// was full, and then the rest of the line follows.
void OutputCapture::Relay::serve(std::uint64_t id) {
  const std::shared_ptr<Stream> stream = find(id);
  if (stream == nullptr) return;
  if (stream->is_hidden) return serve_hidden(id, stream.get());
  bool is_closing = false;
  Found found = Found::kSome;
  for (int turn = 0; (turn < kReadsPerTurn || is_closing) && !is_stopping_; ++turn) {
    {
      const std::lock_guard lock(stream->mutex);
      if (!stream->reader.valid()) return;  // discarded
      is_closing = stream->is_closing;
      found = stream->unwritten.empty() ? stream->read_some(&served_bytes_) : Found::kMore;
      piece_.clear();
      piece_.swap(stream->unwritten);
      if (stream->is_terminal) os::copy_window_size(STDERR_FILENO, stream->reader.get());
    }
    write_out(piece_);
    if (found == Found::kEnd || found == Found::kNothing) break;
    if (found == Found::kSome && !is_closing) break;
  }
  if (found == Found::kEnd || (found == Found::kNothing && is_closing)) remove(id);
}

void OutputCapture::Relay::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const std::lock_guard stream_lock(found->second->mutex);
  unwatch(found->second.get());
  streams_.erase(found);
}

// Also while the console accepts nothing: a worker that is not shown does not wait for it.
void OutputCapture::Relay::serve_hidden() {
  epoll_event events[kEventsPerWait];
  const int ready = ::epoll_wait(hidden_.get(), events, kEventsPerWait, 0);
  for (int i = 0; i < ready; ++i) {
    if (const auto stream = find(events[i].data.u64)) {
      serve_hidden(events[i].data.u64, stream.get());
    }
  }
}

void OutputCapture::Relay::serve_hidden(std::uint64_t id, Stream* stream) {
  bool is_closing = false;
  Found found = Found::kMore;
  {
    const std::lock_guard lock(stream->mutex);
    is_closing = stream->is_closing;
    for (int turn = 0; (turn < kReadsPerTurn || is_closing) && stream->reader.valid() &&
                       (found == Found::kMore || (found == Found::kSome && is_closing));
         ++turn) {
      found = stream->read_some(&served_bytes_);
    }
  }
  if (found == Found::kEnd || (found == Found::kNothing && is_closing)) remove(id);
}

// After a write error the output is dropped: workers must not be affected.
void OutputCapture::Relay::write_out(std::string_view bytes) {
  while (!bytes.empty() && !is_stopping_) {
    pollfd items[] = {
        {STDERR_FILENO, POLLOUT, 0}, {stop_.get(), POLLIN, 0}, {hidden_.get(), POLLIN, 0}};
    ::poll(items, 3, -1);
    if (items[2].revents != 0) serve_hidden();
    if (items[0].revents == 0) continue;
    const ssize_t put = ::write(STDERR_FILENO, bytes.data(), os::ConsoleWriter::next_write(bytes));
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    const std::size_t gone = put < 0 ? bytes.size() : static_cast<std::size_t>(put);
    bytes.remove_prefix(gone);
    copied_bytes_ += gone;
  }
}

void OutputCapture::Relay::check_drained() {
  const std::lock_guard lock(mutex_);
  if (!streams_.empty() || replies_ == nullptr) return;
  replies_->post(on_drained_);
  is_draining_ = false;
}

OutputCapture::OutputCapture(os::EventLoop* loop)
    : loop_(loop),
      takes_stderr_(os::is_inherited(STDERR_FILENO)),
      // The order of discarded bytes does not matter.
      takes_stdout_(takes_stderr_ && os::is_inherited(STDOUT_FILENO) &&
                    os::is_same_file(STDOUT_FILENO, STDERR_FILENO) &&
                    !os::is_null_device(STDERR_FILENO)),
      timeout_(loop, [this] { check_progress(); }) {}

OutputCapture::~OutputCapture() {
  if (!thread_) return;
  relay_->stop();
  thread_->join_within(kJoinTimeout);
}

bool OutputCapture::start_thread() {
  if (thread_) return true;
  auto relay = Relay::create(loop_, [this, alive = std::weak_ptr<bool>(response_timer_)] {
    if (!alive.expired()) conclude();
  });
  if (relay == nullptr) return false;
  Result<os::DetachableThread> thread =
      os::DetachableThread::start("elastic-output", [relay] { relay->run(); });
  if (!thread.ok()) return false;
  relay_ = std::move(relay);
  thread_.emplace(*std::move(thread));
  return true;
}

std::vector<WorkerStream> OutputCapture::begin_round(const std::vector<WorkerTemplate>& workers) {
  ++round_;
  if (relay_ != nullptr) relay_->discard_before(round_ - 1);
  std::vector<WorkerStream> taken(workers.size());
  streams_.assign(workers.size(), nullptr);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const bool is_hidden = workers[i].stderr_target == StreamTarget::kDiscard;
    const bool is_inherited = workers[i].stderr_target == StreamTarget::kInherit && takes_stderr_;
    if (!is_hidden && !is_inherited) continue;
    if (!start_thread()) break;
    Result<os::StreamChannel> channel =
        is_hidden ? os::open_pipe_channel() : os::open_channel_like(STDERR_FILENO);
    if (!channel.ok()) break;  // no descriptor or terminal left: the other workers inherit
    auto stream = std::make_shared<Stream>();
    stream->round = round_;
    stream->is_terminal = channel->is_terminal;
    stream->is_hidden = is_hidden;
    stream->reader = std::move(channel->reader);
    if (!relay_->add(stream)) break;
    streams_[i] = std::move(stream);
    taken[i].descriptor = std::move(channel->writer);
    taken[i].is_stdout =
        !is_hidden && takes_stdout_ && workers[i].stdout_target == StreamTarget::kInherit;
  }
  return taken;
}

// REQUIRES: its mutex is held.
void OutputCapture::read_available(Stream* stream) {
  std::size_t got = 0;
  Found found = Found::kSome;
  while (stream->reader.valid() && got < kTailReadBytesMax &&
         stream->unwritten.size() < kTailReadBytesMax &&
         (found == Found::kSome || found == Found::kMore)) {
    found = stream->read_some(&got);
  }
}

void OutputCapture::continue_round() {
  for (const auto& stream : streams_) {
    if (stream == nullptr) continue;
    const std::lock_guard lock(stream->mutex);
    read_available(stream.get());
    stream->tail = {};
    stream->traceback_at.reset();
    stream->last_traceback_at.reset();
  }
  if (relay_ != nullptr) relay_->wake();
}

OutputCapture::Tail OutputCapture::tail(int local_rank) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= streams_.size() || streams_[index] == nullptr) return {};
  Stream& stream = *streams_[index];
  const std::lock_guard lock(stream.mutex);
  read_available(&stream);
  relay_->wake();
  return {core::last_lines(stream.tail.bytes(), kReportLines, core::OutputTail::kBytesMax),
          stream.traceback_at};
}

void OutputCapture::end_round() {
  for (const auto& stream : streams_) {
    if (stream == nullptr) continue;
    const std::lock_guard lock(stream->mutex);
    stream->is_closing = true;
  }
  if (relay_ != nullptr) relay_->wake();
}

void OutputCapture::finish(std::function<void()> done) {
  if (relay_ == nullptr) {
    done();
    return;
  }
  end_round();
  done_ = std::move(done);
  copied_bytes_ = relay_->copied_bytes();
  timeout_.arm(add_saturating(loop_->now(), kProgressTimeout));
  relay_->drain();
}

void OutputCapture::check_progress() {
  const std::uint64_t before = std::exchange(copied_bytes_, relay_->copied_bytes());
  if (copied_bytes_ == before) return conclude();
  timeout_.arm(add_saturating(loop_->now(), kProgressTimeout));
}

void OutputCapture::conclude() {
  timeout_.disarm();
  if (done_) std::exchange(done_, nullptr)();
}

}  // namespace elastic::host
