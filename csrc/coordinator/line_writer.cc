#include "coordinator/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

// Theory of operation. The thread waits in poll() for space, and then writes at most PIPE_BUF
// bytes: a pipe that is writable for poll() accepts that many. A terminal that is writable for
// poll() may have less space, and then the write blocks; so the thread shares the queue and can be
// abandoned.

namespace elastic::coordinator {
namespace {

constexpr std::size_t kPendingMax = 1 << 20;
constexpr std::size_t kWriteBytesMax = 4096;
constexpr int kLastWaitMs = 1000;
constexpr auto kJoinTimeout = std::chrono::milliseconds(2 * kLastWaitMs);

// Local time: "2026-01-31 12:00:00.123 ".
std::string time_prefix() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::localtime_r(&now.tv_sec, &parts);
  char text[64];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(text + size, sizeof text - size, ".%03d ", static_cast<int>(now.tv_nsec / 1000000));
  return text;
}

}  // namespace

class LineWriter::Queue {
 public:
  explicit Queue(int fd) : fd_(fd) {}

  void push(std::string_view line) {
    {
      const std::lock_guard lock(mutex_);
      if (pending_.size() + line.size() > kPendingMax) {
        ++dropped_lines_;
        return;
      }
      if (dropped_lines_ > 0) {
        const std::size_t dropped = std::exchange(dropped_lines_, 0);
        pending_ += time_prefix() + "(" + std::to_string(dropped) +
                    (dropped == 1 ? " line was" : " lines were") +
                    " dropped: the output was not read)\n";
      }
      pending_ += time_prefix();
      pending_.append(line).push_back('\n');
    }
    changed_.notify_one();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_one();
  }

  // Returns after close() when everything is written, or when the reader accepts nothing.
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !pending_.empty() || is_closing_; });
      if (pending_.empty()) return;
      const std::string bytes = std::exchange(pending_, {});
      lock.unlock();
      write_out(bytes);
      lock.lock();
    }
  }

 private:
  void write_out(std::string_view bytes) {
    while (!bytes.empty()) {
      pollfd item{fd_, POLLOUT, 0};
      const int ready = ::poll(&item, 1, kLastWaitMs);
      if (ready == 0) {
        const std::lock_guard lock(mutex_);
        if (is_closing_) return;
        continue;
      }
      const ssize_t put = ::write(fd_, bytes.data(), std::min(bytes.size(), kWriteBytesMax));
      if (put < 0 && errno != EINTR && errno != EAGAIN) return;  // the reader has closed it
      if (put > 0) bytes.remove_prefix(static_cast<std::size_t>(put));
    }
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string pending_;            // guarded by mutex_
  std::size_t dropped_lines_ = 0;  // guarded by mutex_
  bool is_closing_ = false;        // guarded by mutex_
};

LineWriter::LineWriter(int fd) : queue_(std::make_shared<Queue>(fd)) {
  std::packaged_task<void()> work([queue = queue_] { queue->run(); });
  ended_ = work.get_future();
  thread_ = std::thread(std::move(work));
}

LineWriter::~LineWriter() {
  queue_->close();
  if (ended_.wait_for(kJoinTimeout) == std::future_status::ready) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void LineWriter::write(std::string_view line) { queue_->push(line); }

}  // namespace elastic::coordinator
