#include "core/workers/output_tail.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/utf8.h"

namespace elastic::core {
namespace {

// The length of a terminal's escape sequence at the beginning of `text`; 0: no escape sequence.
std::size_t escape_length(std::string_view text) {
  if (text[0] != '\x1B') return 0;
  if (text.size() < 2 || text[1] != '[') return std::min<std::size_t>(text.size(), 2);
  std::size_t end = 2;
  while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
  return std::min(text.size(), end + 1);
}

// The line as a terminal shows it, without control characters.
std::string clean(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (const std::size_t redrawn = line.rfind('\r'); redrawn != std::string_view::npos) {
    line.remove_prefix(redrawn + 1);
  }
  std::string out;
  while (!line.empty()) {
    std::size_t taken = escape_length(line);
    if (taken == 0) {
      taken = character_length(line);
      const auto first = static_cast<std::uint8_t>(line[0]);
      const bool is_control = (first < 0x20 && first != '\t') || first == 0x7F;
      if (taken == 0) {
        out += kReplacementCharacter;
      } else if (!is_control) {
        out += line.substr(0, taken);
      }
    }
    line.remove_prefix(std::max<std::size_t>(taken, 1));
  }
  return out;
}

// The end of a cleaned line, cut between two characters.
std::string_view end_of(std::string_view line, std::size_t bytes_max) {
  if (line.size() <= bytes_max) return line;
  line.remove_prefix(line.size() - bytes_max);
  while (!line.empty() && (static_cast<std::uint8_t>(line[0]) & 0xC0) == 0x80) {
    line.remove_prefix(1);
  }
  return line;
}

}  // namespace

void OutputTail::append(std::string_view bytes) {
  if (bytes.size() >= kBytesMax) {
    bytes_ = bytes.substr(bytes.size() - kBytesMax);
    return;
  }
  if (bytes_.size() + bytes.size() > 2 * kBytesMax) {
    bytes_.erase(0, bytes_.size() - (kBytesMax - bytes.size()));
  }
  bytes_ += bytes;
}

std::string_view OutputTail::bytes() const {
  const std::string_view all = bytes_;
  return all.size() > kBytesMax ? all.substr(all.size() - kBytesMax) : all;
}

std::string last_lines(std::string_view bytes, std::size_t lines_max, std::size_t bytes_max) {
  while (bytes.ends_with('\n') || bytes.ends_with('\r')) bytes.remove_suffix(1);
  std::vector<std::string> lines;  // the last one first
  std::size_t size = 0;
  while (!bytes.empty() && lines.size() < lines_max) {
    const std::size_t begin = bytes.rfind('\n') + 1;  // npos + 1 is 0
    std::string line = clean(bytes.substr(begin));
    const bool fits = size + line.size() + 1 <= bytes_max;
    if (!fits && !lines.empty()) break;
    lines.emplace_back(end_of(line, bytes_max));
    size += line.size() + 1;
    bytes = bytes.substr(0, begin == 0 ? 0 : begin - 1);
  }
  std::string out;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line != lines.rbegin()) out += '\n';
    out += *line;
  }
  return out;
}

}  // namespace elastic::core
