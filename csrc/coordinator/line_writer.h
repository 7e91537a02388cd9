#pragma once

// Writes log lines on a separate thread, so that a caller never waits for a terminal or a log
// collector that does not read.

#include <future>
#include <memory>
#include <string_view>
#include <thread>

namespace elastic::coordinator {

class LineWriter {
 public:
  // The writer's thread blocks every signal that the calling thread blocks.
  explicit LineWriter(int fd);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  // Writes the pending lines that the reader accepts within a second. A thread that is blocked in a
  // write then is left behind, with the descriptor.
  ~LineWriter();

  // Any thread. Prefixes the time. The pending lines are bounded: further lines are dropped, and
  // their number is written.
  void write(std::string_view line);

 private:
  class Queue;

  const std::shared_ptr<Queue> queue_;  // shared with the thread
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace elastic::coordinator
