#pragma once

// Names and texts of peers: what may be shown on a terminal, in a log and in a report as it is.

#include <cstddef>
#include <string>
#include <string_view>

namespace elastic::core {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Lines { kOne, kMany };  // kMany: with ends of lines and tabs

// The length of the UTF-8 character at the beginning of `text`; 0: no valid character.
// REQUIRES: `text` is not empty
std::size_t character_length(std::string_view text);

// Valid UTF-8 without control characters.
bool is_printable(std::string_view text, Lines lines);

// At most `bytes_max` bytes of the text, cut between two characters, with U+FFFD in the place of
// each byte that is no part of a character and of each control character.
std::string to_printable(std::string_view text, Lines lines, std::size_t bytes_max);

}  // namespace elastic::core
