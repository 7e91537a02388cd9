#include "os/process/control_group.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "os/base/fd.h"
#include "os/process/process_tree.h"

namespace elastic::os {
namespace {

bool write_file(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() &&
         ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// The first line that `matches` accepts; "" if there is none.
template <typename Matches>
std::string_view find_line(std::string_view text, const Matches& matches) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (matches(line)) return line;
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return "";
}

// The n-th of the fields that single blanks separate, from 0.
std::string_view field(std::string_view line, int n) {
  for (; n > 0; --n) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
  return line.substr(0, line.find(' '));
}

// The folder of this process's group in the unified hierarchy; "" if there is none. Its path is
// behind "0::" (cgroups(7)); mountinfo has the root of a mount as its fourth field, the mount point
// as its fifth, and the type behind " - " (proc(5)).
std::string own_folder() {
  std::string groups;
  std::string mounts;
  if (!read_proc_file("/proc/self/cgroup", &groups)) return "";
  if (!read_proc_file("/proc/self/mountinfo", &mounts)) return "";
  const std::string_view group =
      find_line(groups, [](std::string_view line) { return line.substr(0, 3) == "0::"; });
  const std::string_view mount = find_line(mounts, [](std::string_view line) {
    return line.find(" - cgroup2 ") != std::string_view::npos;
  });
  if (group.empty() || mount.empty()) return "";
  std::string_view path = group.substr(3);
  const std::string_view root = field(mount, 3);
  if (root != "/") {
    if (path.substr(0, root.size()) != root) return "";
    path.remove_prefix(root.size());
  }
  return std::string(field(mount, 4)) + std::string(path);
}

}  // namespace

std::optional<ControlGroup> ControlGroup::create_frozen(const std::string& name) {
  const std::string parent = own_folder();
  if (parent.empty()) return std::nullopt;
  const std::string folder = parent + "/" + name;
  if (::mkdir(folder.c_str(), 0755) != 0) return std::nullopt;
  ControlGroup group(folder);
  if (!write_file(folder + "/cgroup.freeze", "1")) return std::nullopt;
  return group;
}

ControlGroup::ControlGroup(ControlGroup&& other) noexcept
    : folder_(std::exchange(other.folder_, {})) {}

ControlGroup& ControlGroup::operator=(ControlGroup&& other) noexcept {
  std::swap(folder_, other.folder_);
  return *this;
}

ControlGroup::~ControlGroup() {
  if (!folder_.empty()) ::rmdir(folder_.c_str());
}

bool ControlGroup::add(pid_t pid) const {
  return write_file(folder_ + "/cgroup.procs", std::to_string(pid));
}

bool ControlGroup::kill() const { return write_file(folder_ + "/cgroup.kill", "1"); }

}  // namespace elastic::os
