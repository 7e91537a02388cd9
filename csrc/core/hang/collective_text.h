#pragma once

// The lines in which workers publish their collective operations and process groups, and the words
// for them.
//
// Pure.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace elastic::core {

// From so many ranks on, one that differs from the others is the one that is wrong.
inline constexpr std::size_t kMajorityRanks = 3;

// One field of a line, up to a tab, which it removes from the text.
std::string_view take_field(std::string_view* text);
std::string_view take_line(std::string_view* text);

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "0-3,8,16-64/16", which ends with 16, 32, 48 and 64; nothing if it is no such text.
std::vector<std::int32_t> ranks_in(std::string_view text);
// Of ascending ranks, as ranks_in() reads it. Those that do not fit are left out.
std::string list_ranks(const std::vector<std::int32_t>& ranks);

// The ranks of each group, as text, from the lines of a worker.
std::map<std::string, std::string, std::less<>> members_of_groups(std::string_view lines);

// "the default group", "group dp0"
std::string group_label(const std::string& name, const std::string& description);

}  // namespace elastic::core
