#include "core/base/utf8.h"

#include <algorithm>
#include <cstdint>

namespace elastic::core {
namespace {

bool is_plain(char byte) { return byte >= ' ' && byte <= '~'; }

// The length of the printable character at the beginning of `text`; 0: it is none.
std::size_t printable_length(std::string_view text, Lines lines) {
  const char first = text.front();
  if (is_plain(first)) return 1;
  if (first == '\n' || first == '\t') return lines == Lines::kMany ? 1 : 0;
  const std::size_t length = character_length(text);
  const bool is_c1 = length == 2 && first == '\xC2' && static_cast<std::uint8_t>(text[1]) < 0xA0;
  return length < 2 || is_c1 ? 0 : length;  // of one byte, the others are control characters
}

}  // namespace

std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  const std::size_t length = first < 0x80    ? 1
                             : first < 0xC2  ? 0
                             : first < 0xE0  ? 2
                             : first < 0xF0  ? 3
                             : first <= 0xF4 ? 4
                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points above U+10FFFF.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool is_printable(std::string_view text, Lines lines) {
  while (!text.empty()) {
    const std::size_t length = printable_length(text, lines);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string to_printable(std::string_view text, Lines lines, std::size_t bytes_max) {
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  while (!text.empty()) {
    const std::size_t length = printable_length(text, lines);
    const std::string_view shown = length > 0 ? text.substr(0, length) : kReplacementCharacter;
    if (out.size() + shown.size() > bytes_max) break;
    out += shown;
    text.remove_prefix(std::max<std::size_t>(character_length(text), 1));
  }
  return out;
}

}  // namespace elastic::core
