#pragma once

// Writes to descriptors that may block, such as a terminal or a pipe that no process reads. Its
// owner never waits: what a descriptor cannot take at once is written by a thread.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "elastic/status.h"
#include "os/loop/registration.h"
#include "os/loop/thread.h"

namespace elastic::os {

class ConsoleWriter final : private FdHandler {
 public:
  // Of the first write to a descriptor that failed, unless it has no reader (EPIPE).
  using OnError = std::function<void(int fd, int error)>;
  // `on_space` is called on the loop thread when half of `pending_max` bytes or less are pending
  // after is_full(), and `on_error` once for a descriptor. `loop` outlives the writer.
  static Result<std::unique_ptr<ConsoleWriter>> start(EventLoop* loop, std::size_t pending_max,
                                                      std::function<void()> on_space,
                                                      OnError on_error = {});
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;
  // Drops pending lines. After a second, a write that does not return is left to its thread.
  ~ConsoleWriter() override;

  // Loop thread only.
  //
  // Writes whole lines to `fd`, in the order of the calls. Lines for a descriptor that failed are
  // dropped.
  void push(int fd, std::string_view lines);
  // More than `pending_max` bytes are pending: the caller pushes no more until on_space().
  bool is_full() const { return is_full_; }
  // Pushed and not yet written.
  std::size_t pending_bytes() const;
  // Calls `done` from the loop, once: when close_input() was called and everything is written, or
  // when nothing was written for ten seconds. `done` may destroy the writer.
  void finish(std::function<void()> done);
  // No push() follows. Without effect before finish().
  void close_input();

  // How much of `bytes` to write at once to a descriptor that poll() calls writable, so that it
  // does not block and lines stay whole: whole lines, unless one alone is longer than a write.
  static std::size_t next_write(std::string_view bytes);

 private:
  class Queue;

  ConsoleWriter(EventLoop* loop, std::size_t pending_max, std::function<void()> on_space,
                OnError on_error, std::shared_ptr<Queue> queue);
  void on_ready(std::uint32_t events) override;
  void note_progress();

  EventLoop* const loop_;
  const std::size_t pending_max_;
  const std::function<void()> on_space_;
  const OnError on_error_;
  const std::shared_ptr<Queue> queue_;  // shared with the thread
  bool is_full_ = false;
  bool is_closed_ = false;
  std::function<void()> done_;
  Timer end_timer_;
  Watch watch_;
  std::optional<DetachableThread> thread_;
};

}  // namespace elastic::os
