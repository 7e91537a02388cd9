#pragma once

// Writes to descriptors that may block, such as a terminal or a pipe that no process reads, on a
// thread of its own; short lines to a pipe with space at once.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"
#include "os/loop/thread.h"

namespace elastic::os {

class ConsoleWriter final : private EventLoop::FdHandler {
 public:
  // `on_progress` is called on the loop thread after something was written. `loop` outlives the
  // writer.
  static Result<std::unique_ptr<ConsoleWriter>> start(EventLoop* loop,
                                                      std::function<void()> on_progress);
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;
  // Drops pending lines. After a second, a write that does not return is left to its thread.
  ~ConsoleWriter() override;

  // Loop thread only. Queues whole lines for `fd`. Lines for a descriptor that failed are dropped.
  // The caller bounds pending_bytes().
  void push(int fd, std::string_view lines);
  // How much of `bytes` to write at once to a descriptor that poll() calls writable, so that it
  // does not block and lines stay whole: whole lines, unless one alone is longer than a write.
  static std::size_t next_write(std::string_view bytes);
  // Queued and not yet written.
  std::size_t pending_bytes() const;

 private:
  class Queue;

  explicit ConsoleWriter(std::function<void()> on_progress, std::shared_ptr<Queue> queue);
  void on_ready(std::uint32_t events) override;

  const std::function<void()> on_progress_;
  const std::shared_ptr<Queue> queue_;  // shared with the thread
  std::map<int, bool> is_pipe_;         // by descriptor, of the first push: fstat() may block
  EventLoop::Watch watch_;
  std::optional<DetachableThread> thread_;
};

}  // namespace elastic::os
