#include "os/process/memory_left.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>

#include "os/process/memory_file.h"
#include "os/process/process_tree.h"

namespace elastic::os {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 46;  // version 1 has a number for none

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<std::uint64_t> number_in_file(const std::string& path) {
  std::string text;
  return read_proc_file(path, &text) ? number_in(text) : std::nullopt;  // "max": no limit
}

// The number behind the name, at the beginning of a line.
std::uint64_t field_of(const std::string& text, const std::string& name) {
  std::size_t at = text.starts_with(name) ? 0 : text.find("\n" + name);
  if (at == text.npos) return 0;
  at = text.find_first_of("0123456789", at + name.size());
  return at == text.npos ? 0 : number_in(std::string_view(text).substr(at)).value_or(0);
}

void consider(MemoryLeft* memory, const std::string& folder, const char* limit_file,
              const char* usage_file, const char* cache_field) {
  const auto limit = number_in_file(folder + limit_file);
  const auto usage = number_in_file(folder + usage_file);
  if (!limit || !usage || *limit > kNoLimit) return;
  std::string statistics;
  read_proc_file(folder + "/memory.stat", &statistics);
  const std::uint64_t used = *usage - std::min(*usage, field_of(statistics, cache_field));
  const std::uint64_t left = *limit - std::min(*limit, used);
  if (left >= memory->bytes) return;
  *memory = {left, "of the control group's limit of " + bytes_text(*limit)};
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  char text[40];
  constexpr double kMiB = 1 << 20;
  const double value = static_cast<double>(bytes) / kMiB;
  std::snprintf(text, sizeof text, value < 1024 ? "%.1f MiB" : "%.1f GiB",
                value < 1024 ? value : value / 1024);
  return text;
}

MemoryLeft memory_left(const std::string& root) {
  MemoryLeft memory;
  std::string text;
  if (read_proc_file(root + "/proc/meminfo", &text)) {
    memory = {field_of(text, "MemAvailable:") << 10, "on this host"};
    if (memory.bytes == 0) memory.bytes = UINT64_MAX;
  }
  if (!read_proc_file(root + "/proc/self/cgroup", &text)) text.clear();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find(",memory,") == controllers.npos) continue;
    // In a container the path may be that of the host: then only the root exists.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      if (path == "/") path.clear();
      if (is_v2) {
        consider(&memory, root + "/sys/fs/cgroup" + path, "/memory.max", "/memory.current",
                 "inactive_file");
      } else {
        consider(&memory, root + "/sys/fs/cgroup/memory" + path, "/memory.limit_in_bytes",
                 "/memory.usage_in_bytes", "total_inactive_file");
      }
      if (path.find('/') == path.npos) break;
    }
  }
  if (memory.bytes != UINT64_MAX) memory.bytes += memory_being_freed();
  return memory;
}

}  // namespace elastic::os
