#include "os/process/kernel_evidence.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "os/base/fd.h"

namespace elastic::os {
namespace {

constexpr std::string_view kField = "oom_kill ";
// Of the kernel log.
constexpr std::size_t kRecordBytes = 8192;  // the limit of the kernel
constexpr int kRecordsMax = 100000;

std::optional<std::uint64_t> read_field(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(kField)) continue;
    std::istringstream number(line.substr(kField.size()));
    std::uint64_t count = 0;
    if (number >> count) return count;
  }
  return std::nullopt;
}

bool has_memory(std::string_view controllers) {
  return ("," + std::string(controllers) + ",").find(",memory,") != std::string::npos;
}

struct Group {
  bool is_v2 = false;
  std::string path;
};

// The control groups that may count: of version 1's memory controller, and of version 2.
std::vector<Group> groups(const std::string& root) {
  std::vector<Group> found;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "4:memory:/job", "0::/job"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (is_v2 || has_memory(controllers)) found.push_back({is_v2, line.substr(second + 1)});
  }
  return found;
}

// The kernel writes blanks and backslashes in names as \040.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// The directory of a group below a mount of its hierarchy; a mount may begin below the root.
std::string directory_of(const std::string& root, const Group& group) {
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {  // "30 23 0:26 ROOT POINT options - TYPE source OPTIONS"
    std::istringstream before(line);
    std::string ignored;
    std::string mount_root;
    std::string point;
    before >> ignored >> ignored >> ignored >> mount_root >> point;
    mount_root = unescaped(mount_root);
    point = unescaped(point);
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream after(line.substr(dash + 3));
    std::string type;
    std::string options;
    after >> type >> ignored >> options;
    if (type != (group.is_v2 ? "cgroup2" : "cgroup")) continue;
    if (!group.is_v2 && !has_memory(options)) continue;
    std::string inside = group.path;
    if (mount_root != "/") {
      inside = inside.starts_with(mount_root) ? inside.substr(mount_root.size()) : "";
    }
    return root + point + inside;
  }
  return "";
}

// "6,339,5140900,-;text": priority, number, microseconds since boot.
Instant time_of(std::string_view header) {
  header.remove_prefix(std::min(header.find(','), header.size() - 1) + 1);
  header.remove_prefix(std::min(header.find(','), header.size() - 1) + 1);
  return Instant(std::chrono::microseconds(std::atoll(std::string(header).c_str())));
}

}  // namespace

OomCounter::OomCounter(const std::string& root) {
  for (const Group& group : groups(root)) {
    const std::string directory = directory_of(root, group);
    const std::string file = group.is_v2 ? "memory.events" : "memory.oom_control";
    if (directory.empty() || !read_field(directory + "/" + file)) continue;
    path_ = directory + "/" + file;
    name_ = file + " of the control group " + group.path;
    return;
  }
  path_ = root + "/proc/vmstat";
  name_ = "/proc/vmstat of the machine";
}

std::optional<std::uint64_t> OomCounter::read() const { return read_field(path_); }

void read_kernel_log(Instant since, const std::function<void(std::string_view)>& sink) {
  const UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.valid()) return;
  std::array<char, kRecordBytes> buffer;
  for (int i = 0; i < kRecordsMax; ++i) {
    const ssize_t got = ::read(log.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EPIPE) continue;  // records were overwritten: the next one follows
    if (got <= 0) return;
    const std::string_view record(buffer.data(), static_cast<std::size_t>(got));
    const std::size_t text = record.find(';');
    if (text == std::string_view::npos || text == 0) continue;
    if (time_of(record.substr(0, text)) < since) continue;
    const std::string_view line = record.substr(text + 1);
    sink(line.substr(0, line.find('\n')));
  }
}

}  // namespace elastic::os
