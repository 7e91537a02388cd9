#pragma once

// Writes log lines on separate threads, so that a caller never waits for a terminal or a log
// collector that does not read.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "elastic/status.h"
#include "os/file/console_writer.h"
#include "os/loop/loop_object.h"

namespace elastic::coordinator {

class LineWriter {
 public:
  static Result<std::unique_ptr<LineWriter>> start(int fd);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  // Writes the pending lines that the reader accepts within a second. A thread that is blocked in a
  // write then is left behind, with the descriptor.
  ~LineWriter();

  // Any thread. Prefixes the time. The pending lines are bounded: further lines are dropped, and
  // their number is written.
  void write(std::string_view line);

 private:
  LineWriter(int fd, std::unique_ptr<os::LoopObject<os::ConsoleWriter>> writer)
      : fd_(fd), writer_(std::move(writer)) {}
  void push(os::ConsoleWriter* writer, const std::string& line);

  const int fd_;
  std::unique_ptr<os::LoopObject<os::ConsoleWriter>> writer_;
  std::size_t dropped_lines_ = 0;  // used on its thread
};

}  // namespace elastic::coordinator
