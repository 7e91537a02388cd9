#pragma once

// A word of a command line that is shown to users, who pass it to a shell.

#include <string>
#include <string_view>

namespace elastic {

// The word as one argument for a POSIX shell: unchanged if it has only characters without a
// meaning for the shell (XCU 2.2), else in single quotes.
inline std::string shell_quote(std::string_view word) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace elastic
