#include "coordinator/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>

namespace elastic::coordinator {
namespace {

constexpr std::size_t kPendingMax = 1 << 20;
constexpr int kLastWaitMs = 1000;

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

LineWriter::LineWriter(int fd) : fd_(fd), thread_([this] { run(); }) {}

LineWriter::~LineWriter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void LineWriter::write(std::string_view line) {
  {
    const std::lock_guard lock(mutex_);
    if (pending_.size() + line.size() > kPendingMax) {
      ++dropped_lines_;
      return;
    }
    if (dropped_lines_ > 0) {
      pending_ += time_prefix() + "(" + std::to_string(std::exchange(dropped_lines_, 0)) +
                  " lines were dropped: the output was not read)\n";
    }
    pending_ += time_prefix();
    pending_.append(line).push_back('\n');
  }
  changed_.notify_one();
}

void LineWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !pending_.empty() || closing_; });
    if (pending_.empty()) return;
    const std::string bytes = std::exchange(pending_, {});
    lock.unlock();
    write_out(bytes);
    lock.lock();
  }
}

void LineWriter::write_out(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd item{fd_, POLLOUT, 0};
    const int ready = ::poll(&item, 1, kLastWaitMs);
    if (ready == 0) {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      continue;
    }
    // A writable pipe accepts at least 4096 bytes (PIPE_BUF).
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size() < 4096 ? bytes.size() : 4096);
    if (put < 0 && errno != EINTR && errno != EAGAIN) return;  // the reader has closed it
    if (put > 0) bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

}  // namespace elastic::coordinator
