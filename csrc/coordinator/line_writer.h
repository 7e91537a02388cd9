#pragma once

// Lines for a terminal or a log collector that may not read just now, written by a thread of their
// own, so that whoever has something to say never waits.

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace elastic::coordinator {

class LineWriter {
 public:
  // Any thread that exists before; the writer's own blocks every signal that its creator blocks.
  explicit LineWriter(int fd);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  ~LineWriter();  // writes what is pending, if somebody reads it within a second

  // Any thread. Puts the time before the line. What nobody reads is bounded: beyond that lines are
  // left out, and their number is told.
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
