#include "core/hang/collective_text.h"

#include <algorithm>
#include <cstddef>

#include "core/hang/hang_types.h"

namespace elastic::core {
namespace {

// A text of ranks that names more than these is of no group.
constexpr std::size_t kRanksMax = std::size_t{1} << 17;
// Steps; below it the ranks themselves are as short.
constexpr std::size_t kShortestStride = 3;

}  // namespace

std::string_view take_field(std::string_view* text) {
  const std::size_t end = std::min(text->find('\t'), text->size());
  const std::string_view field = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return field;
}

std::string_view take_line(std::string_view* text) {
  const std::size_t end = std::min(text->find('\n'), text->size());
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return line;
}

std::vector<std::int32_t> ranks_in(std::string_view text) {
  std::vector<std::int32_t> ranks;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t slash = part.find('/');
    const auto step = slash == part.npos ? 1 : number_of<std::int32_t>(part.substr(slash + 1));
    part = part.substr(0, slash);
    const std::size_t dash = part.find('-');
    const auto first = number_of<std::int32_t>(part.substr(0, dash));
    const auto last = dash == part.npos ? first : number_of<std::int32_t>(part.substr(dash + 1));
    if (!step || *step < 1 || !first || !last || *first < 0 || *last < *first) return {};
    const auto steps = static_cast<std::size_t>((*last - *first) / *step);
    if (steps >= kRanksMax - ranks.size()) return {};
    for (std::size_t i = 0; i <= steps; ++i) {
      ranks.push_back(*first + static_cast<std::int32_t>(i) * *step);
    }
  }
  return ranks;
}

std::string list_ranks(const std::vector<std::int32_t>& ranks) {
  std::string list;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = std::min(first + 1, ranks.size() - 1);
    const std::int32_t step = ranks[last] - ranks[first];
    while (last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == step) ++last;
    if (step > 1 && last - first < kShortestStride) last = first;
    if (!list.empty()) list += ',';
    list += std::to_string(ranks[first]);
    if (last > first) list += '-' + std::to_string(ranks[last]);
    if (last > first && step > 1) list += '/' + std::to_string(step);
    first = last + 1;
  }
  if (list.size() > hang::kRanksTextMax) list.resize(list.rfind(',', hang::kRanksTextMax));
  return list;
}

std::map<std::string, std::string, std::less<>> members_of_groups(std::string_view lines) {
  std::map<std::string, std::string, std::less<>> members;
  while (!lines.empty()) {
    std::string_view line = take_line(&lines);
    const std::string_view name = take_field(&line);
    if (line.size() <= hang::kRanksTextMax) members[std::string(name)] = line;
  }
  return members;
}

std::string group_label(const std::string& name, const std::string& description) {
  if (description == "default_pg" || (description.empty() && name == "0")) {
    return "the default group";
  }
  const bool is_named = !description.empty() && description != "undefined";
  return "group " + (is_named ? description : name);
}

}  // namespace elastic::core
