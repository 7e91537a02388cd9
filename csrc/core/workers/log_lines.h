#pragma once

// Splits a worker's output into lines for a console that several workers share.

#include <functional>
#include <string>
#include <string_view>

namespace elastic::core {

// Splits a stream into lines, so that lines of several streams are not interleaved.
//
// A line ends with "\n" or "\r\n", and is passed on with "\n". A carriage return alone ends a line
// too and is kept, so that a progress bar still redraws its row on the console. Two consecutive
// returns make no empty line. Bytes are passed on unchanged, in any encoding.
class LineSplitter {
 public:
  // The text of a line, and its terminator: '\n' or '\r'.
  using Sink = std::function<void(std::string_view text, char terminator)>;
  // A longer line is passed on in pieces, each as a line that ends between two characters. The
  // default; an unfinished line needs so much memory.
  static constexpr std::size_t kLineBytesMax = 64 * 1024;
  // Begins the rest of a line whose beginning was passed on, by pause() or because it is long.
  static constexpr std::string_view kContinuation = "\xE2\x80\xA6";  // "…"

  explicit LineSplitter(std::size_t line_bytes_max = kLineBytesMax)
      : line_bytes_max_(line_bytes_max) {}

  void feed(std::string_view bytes, const Sink& sink);
  // The stream has paused: passes on an unfinished line, such as a prompt. A progress bar keeps its
  // carriage return as the terminator.
  void pause(const Sink& sink);
  // Call at the end of the stream: passes on an unfinished line with an added terminator.
  void flush(const Sink& sink);
  // Whether pause() would pass on anything.
  bool has_unfinished_line() const;

 private:
  static constexpr std::size_t kMarkBytes = kContinuation.size();

  void pass_on(std::size_t size, const Sink& sink);
  void end_line(std::string_view tail, char terminator, const Sink& sink);

  std::size_t line_bytes_max_;
  std::string partial_;             // the beginning of a line
  bool return_is_pending_ = false;  // "\r" was the last byte: "\n" may follow
  bool is_redrawing_ = false;       // the last line ended with "\r"
  bool is_continued_ = false;       // partial_ begins with kContinuation
};

}  // namespace elastic::core
