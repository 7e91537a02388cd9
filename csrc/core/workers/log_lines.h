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
  using Sink = std::function<void(std::string_view line)>;
  // A longer line is passed on in pieces, each as a line.
  static constexpr std::size_t kLineBytesMax = 64 * 1024;

  void feed(std::string_view bytes, const Sink& sink);
  // Call at the end of the stream: passes on an unfinished line with an added terminator.
  void flush(const Sink& sink);

 private:
  void end_line(std::string_view tail, char terminator, const Sink& sink);

  std::string partial_;             // the beginning of a line
  bool return_is_pending_ = false;  // "\r" was the last byte: "\n" may follow
};

// `text` with its variables replaced: ${role_name}, ${rank}, ${local_rank}, with or without braces.
// "$$" becomes "$", and unknown variables stay unchanged.
std::string expand_prefix(std::string_view text, std::string_view role_name, int rank,
                          int local_rank);

}  // namespace elastic::core
