#pragma once

// Texts in messages: counts, durations, signals, words of a command line, the errors of programs;
// and what the names and texts of peers may contain.

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/time.h"

namespace elastic::core {

// A number and its noun: "1 node", "2 nodes".
template <std::integral Number>
std::string count_text(Number count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

// "50 ms", "2.5 s", "10 min", "1 h 5 min", as elastic.text.duration writes them: three significant
// digits below a minute, then whole seconds, from an hour on whole minutes.
std::string duration_text(Duration duration);
// "<message> in 2 s", or the message alone.
std::string with_remaining(const std::string& message, std::optional<Duration> remaining);

// "SIGTERM"; nullptr: a real-time signal, or none.
const char* signal_name(int signal);
// "signal 15 (SIGTERM)"; without the name if the signal has none.
std::string signal_text(int signal);

// Whether an exception only tells that the connection to another rank broke: it follows the failure
// of that rank.
bool is_lost_peer(std::string_view error);

// The text with "#" for each number in it: equal for errors that differ only in numbers.
std::string without_numbers(std::string_view text);
// The last line that is not empty; "".
std::string_view last_line(std::string_view text);

// ---- Names and texts of peers: what may be shown on a terminal, in a log and in a report.

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
