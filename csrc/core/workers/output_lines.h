#pragma once

// The output of workers as lines: split, prefixed and merged for a console that several workers
// share; and the last ones, for a report.
//
// Pure. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "elastic/time.h"

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

// The values of the variables of a prefix's template, except the time. Ranks are text because a
// line of several workers has a range: "0-3".
struct PrefixValues {
  std::string role_name;
  std::string rank;
  std::string local_rank;
  std::string hostname;
  std::string round;
};

// The prefix of a worker's lines, made from a template: ${role_name}, ${rank}, ${local_rank},
// ${hostname}, ${round} and ${time} are replaced, with or without braces. "$$" becomes "$", and
// unknown variables stay unchanged.
class LinePrefix {
 public:
  LinePrefix() = default;
  LinePrefix(std::string_view text, const PrefixValues& values);

  bool has_time() const { return parts_.size() > 1; }
  void append_to(std::string* out, std::string_view time) const;

 private:
  std::vector<std::string> parts_;  // the time stands between two parts
};

// Merges identical lines of several workers into one line that names them all.
//
// A line waits until every worker has written it, or until kMergeTimeout has passed. Lines keep the
// order of their first arrival, and no worker's lines change their order.
class LineMerger {
 public:
  // The ascending numbers of the workers that wrote the line.
  using Sink = std::function<void(const std::vector<int>& workers, std::string_view text)>;
  static constexpr Duration kMergeTimeout = std::chrono::milliseconds(200);
  // Beyond these limits the oldest line no longer waits.
  static constexpr std::size_t kLinesMax = 1024;
  static constexpr std::size_t kBytesMax = 1024 * 1024;

  // Adds a worker that will write lines.
  void add_worker(int worker);
  // The worker writes no further lines.
  void remove_worker(int worker);
  void feed(int worker, std::string_view text, Instant now, const Sink& sink);
  // Passes on the lines that waited long enough.
  void advance(Instant now, const Sink& sink);
  // Passes on all lines.
  void flush(const Sink& sink);
  // When advance() must be called; nullopt: no line waits.
  std::optional<Instant> next_deadline() const;

 private:
  struct Line {
    std::string text;
    std::vector<int> workers;  // ascending
    Instant since;
  };

  bool join(int worker, std::string_view text);
  bool is_complete(const Line& line) const;
  void pop(const Sink& sink);

  std::deque<Line> lines_;
  std::uint64_t popped_ = 0;  // lines that have left the front; positions count from the start
  std::unordered_map<int, std::uint64_t> next_;  // by worker: position after its last line
  std::size_t bytes_ = 0;
};

// The last bytes of a stream.
class OutputTail {
 public:
  // Several C++ stack traces, whose frames last_lines() shortens, and the error before them.
  static constexpr std::size_t kBytesMax = 64 * 1024;

  void append(std::string_view bytes);
  // The last appended bytes, at most kBytesMax; may begin inside a line or a character.
  std::string_view bytes() const;

 private:
  std::string bytes_;  // up to twice the limit, so that bytes are rarely moved
};

// The last lines of `bytes`: at most `lines_max` of them and `bytes_max` bytes, without the final
// end of line. Whole lines, except that only the end of a line longer than the limit is kept. After
// carriage returns only the text that a terminal would show remains. Invalid UTF-8 is replaced by
// U+FFFD, and control characters other than tabs are removed.
//
// Of a C++ stack trace ("frame #0: …"), or of a Python stack that faulthandler printed, the first
// kFramesShown frames remain, and "… 57 frames" in place of the others.
inline constexpr std::size_t kFramesShown = 3;
std::string last_lines(std::string_view bytes, std::size_t lines_max, std::size_t bytes_max);

}  // namespace elastic::core
