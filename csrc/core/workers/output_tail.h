#pragma once

// The last bytes of a stream, for a report.

#include <cstddef>
#include <string>
#include <string_view>

namespace elastic::core {

class OutputTail {
 public:
  static constexpr std::size_t kBytesMax = 16 * 1024;

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
std::string last_lines(std::string_view bytes, std::size_t lines_max, std::size_t bytes_max);

}  // namespace elastic::core
