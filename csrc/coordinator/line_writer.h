#pragma once

// Writes log lines on a separate thread, so that a caller never waits for a terminal or a log
// collector that does not read.

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace elastic::coordinator {

class LineWriter {
 public:
  // The writer's thread blocks every signal that the calling thread blocks.
  explicit LineWriter(int fd);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  ~LineWriter();  // writes the pending lines that the reader accepts within a second

  // Any thread. Prefixes the time. The pending lines are bounded: further lines are dropped, and
  // their number is written.
  void write(std::string_view line);

 private:
  void run();
  void write_out(std::string_view bytes);

  const int fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string pending_;            // guarded by mutex_
  std::size_t dropped_lines_ = 0;  // guarded by mutex_
  bool closing_ = false;           // guarded by mutex_
  std::thread thread_;
};

}  // namespace elastic::coordinator
