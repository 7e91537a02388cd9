#pragma once

// A worker's output as lines for a console that several workers share.

#include <functional>
#include <string>
#include <string_view>

namespace elastic::core {

// Cuts a stream into lines, so that lines of several streams never mix.
//
// A line ends with "\n" or "\r\n", and is given with "\n". A carriage return alone ends a line too
// and is kept: a progress bar redraws its row on the console as it does without us. Between two
// returns nothing is no line. Bytes are passed on as they are, whatever their encoding.
class LineSplitter {
 public:
  using Sink = std::function<void(std::string_view line)>;
  // A line longer than this is given in pieces, each as a line.
  static constexpr std::size_t kLineBytesMax = 64 * 1024;

  void feed(std::string_view bytes, const Sink& sink);
  // The stream has ended: what has no end of line yet is given one.
  void flush(const Sink& sink);

 private:
  void end_line(std::string_view tail, char terminator, const Sink& sink);

  std::string partial_;             // the beginning of a line
  bool return_is_pending_ = false;  // "\r" was the last byte: "\n" may follow
};

// `text` with its variables replaced: ${role_name}, ${rank}, ${local_rank}, with or without braces.
// "$$" gives "$", and what is no variable of ours stays as it is.
std::string expand_prefix(std::string_view text, std::string_view role_name, int rank,
                          int local_rank);

}  // namespace elastic::core
