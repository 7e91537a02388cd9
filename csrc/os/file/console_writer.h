#pragma once

// Writes to descriptors that may block, such as a terminal or a pipe that nobody reads just now, on
// a thread of its own.

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

namespace elastic::os {

class ConsoleWriter final : private EventLoop::FdHandler {
 public:
  // `on_progress` is called on the loop thread after something was written. `loop` outlives the
  // writer.
  static Result<std::unique_ptr<ConsoleWriter>> start(EventLoop* loop,
                                                      std::function<void()> on_progress);
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;
  ~ConsoleWriter() override;  // gives up what is pending, and joins

  // Loop thread only. Queues whole lines for `fd`. A descriptor that cannot be written any more
  // swallows what it gets. The caller bounds pending_bytes().
  void push(int fd, std::string_view lines);
  // Queued and not yet written.
  std::size_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Piece {
    int fd = -1;
    std::string bytes;
  };

  ConsoleWriter(std::function<void()> on_progress, UniqueFd wakeup, UniqueFd progress);
  void on_ready(std::uint32_t events) override;
  void run();
  bool take(Piece* piece);
  bool write_out(const Piece& piece);
  bool wait_writable(int fd);

  const std::function<void()> on_progress_;
  const UniqueFd wakeup_;    // eventfd, to the thread: something is queued, or stop
  const UniqueFd progress_;  // eventfd, to the loop
  std::atomic<std::size_t> pending_bytes_{0};
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;
  std::deque<Piece> queue_;  // guarded by mutex_
  EventLoop::Watch watch_;
  std::thread thread_;
};

}  // namespace elastic::os
