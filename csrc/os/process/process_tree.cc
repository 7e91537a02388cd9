#include "os/process/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "os/base/fd.h"

namespace elastic::os {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, CloseDir>;

bool read_file(const char* path, std::string* text) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return false;
  text->clear();
  char bytes[4096];
  ssize_t got = 0;
  while ((got = ::read(file.get(), bytes, sizeof bytes)) > 0) {
    text->append(bytes, static_cast<std::size_t>(got));
  }
  return got == 0;
}

// /proc/self/task/<tid>/children: pids, each followed by a space. False: the kernel lacks it.
bool list_by_thread(std::vector<pid_t>* children) {
  const Dir tasks(::opendir("/proc/self/task"));
  if (tasks == nullptr) return false;
  std::string text;
  bool any = false;
  while (const dirent* task = ::readdir(tasks.get())) {
    if (task->d_name[0] == '.') continue;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/task/%.20s/children", task->d_name);
    if (!read_file(path, &text)) continue;  // the thread has ended, or no kernel support
    any = true;
    const char* at = text.data();
    const char* const end = at + text.size();
    pid_t pid = 0;
    for (auto found = std::from_chars(at, end, pid); found.ec == std::errc();
         found = std::from_chars(at, end, pid)) {
      children->push_back(pid);
      at = found.ptr < end ? found.ptr + 1 : end;
    }
  }
  return any;
}

// The fields of /proc/<pid>/stat after "pid (name) ". The name may contain brackets, so the fields
// begin after the last one. Empty: no such process.
std::string read_stat(pid_t pid) {
  std::string text;
  if (!read_file(("/proc/" + std::to_string(pid) + "/stat").c_str(), &text)) return "";
  const std::size_t bracket = text.rfind(')');
  return bracket == std::string::npos || bracket + 2 > text.size() ? "" : text.substr(bracket + 2);
}

}  // namespace

bool list_children_by_scan(std::vector<pid_t>* children) {
  children->clear();
  const Dir processes(::opendir("/proc"));
  if (processes == nullptr) return false;
  const pid_t self = ::getpid();
  while (const dirent* process = ::readdir(processes.get())) {
    const auto pid = static_cast<pid_t>(std::strtol(process->d_name, nullptr, 10));
    const std::string stat = pid > 0 ? read_stat(pid) : "";  // "state parent …"
    if (stat.size() > 2 && std::strtol(stat.c_str() + 2, nullptr, 10) == self) {
      children->push_back(pid);
    }
  }
  return true;
}

bool list_children(std::vector<pid_t>* children) {
  children->clear();
  if (list_by_thread(children)) return true;
  return list_children_by_scan(children);
}

std::string describe_wait(pid_t pid) {
  const std::string stat = read_stat(pid);
  if (stat.empty()) return "gone";
  std::string text = std::string("state ") + stat[0];
  std::string where;
  read_file(("/proc/" + std::to_string(pid) + "/wchan").c_str(), &where);
  if (!where.empty() && where != "0") text += " in " + where;
  return text;
}

}  // namespace elastic::os
