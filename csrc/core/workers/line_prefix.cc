#include "core/workers/line_prefix.h"

#include <optional>

namespace elastic::core {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::optional<std::string> variable_value(std::string_view name, const PrefixValues& values) {
  if (name == "role_name") return values.role_name;
  if (name == "rank") return values.rank;
  if (name == "local_rank") return values.local_rank;
  if (name == "hostname") return values.hostname;
  if (name == "round") return values.round;
  return std::nullopt;
}

}  // namespace

LinePrefix::LinePrefix(std::string_view text, const PrefixValues& values) : parts_(1) {
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    parts_.back() += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    if (text.starts_with("$$")) {
      parts_.back() += '$';
      text.remove_prefix(2);
      continue;
    }
    const bool has_brace = text.starts_with("${");
    const std::size_t begin = has_brace ? 2 : 1;
    std::size_t end = begin;
    while (end < text.size() && is_name_char(text[end])) ++end;
    const bool is_closed = !has_brace || (end < text.size() && text[end] == '}');
    const std::string_view name = is_closed ? text.substr(begin, end - begin) : std::string_view();
    const std::optional<std::string> value = variable_value(name, values);
    const bool is_known = value || name == "time";
    const std::size_t whole = is_known && has_brace ? end + 1 : end;
    if (value) {
      parts_.back() += *value;
    } else if (is_known) {
      parts_.emplace_back();
    } else {
      parts_.back() += text.substr(0, whole);
    }
    text.remove_prefix(whole);
  }
}

void LinePrefix::append_to(std::string* out, std::string_view time) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i > 0) *out += time;
    *out += parts_[i];
  }
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[first]);
    if (last > first) text += '-' + std::to_string(numbers[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace elastic::core
