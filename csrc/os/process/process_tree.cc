#include "os/process/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "os/base/fd.h"

namespace elastic::os {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, CloseDir>;

bool read_all(int file, std::string* text) {
  text->clear();
  char bytes[4096];
  ssize_t got = 0;
  while ((got = ::read(file, bytes, sizeof bytes)) > 0) {
    text->append(bytes, static_cast<std::size_t>(got));
  }
  return got == 0;
}

// Adds the pids of a file "children", each of which is followed by a space.
void parse_children(const std::string& text, std::vector<pid_t>* children) {
  const char* at = text.data();
  const char* const end = at + text.size();
  pid_t pid = 0;
  for (auto found = std::from_chars(at, end, pid); found.ec == std::errc();
       found = std::from_chars(at, end, pid)) {
    children->push_back(pid);
    at = found.ptr < end ? found.ptr + 1 : end;
  }
}

// Adds the pids of /proc/self/task/<tid>/children. False: the kernel lacks the file.
bool add_children(std::vector<pid_t>* children) {
  const std::string folder = "/proc/self/task";
  const Dir tasks(::opendir(folder.c_str()));
  if (tasks == nullptr) return false;
  std::string text;
  bool any = false;
  while (const dirent* task = ::readdir(tasks.get())) {
    if (task->d_name[0] == '.') continue;
    const std::string path = folder + "/" + task->d_name + "/children";
    if (!read_proc_file(path, &text)) continue;  // the thread has ended, or no kernel support
    any = true;
    parse_children(text, children);
  }
  return any;
}

// The fields of /proc/<pid>/stat after "pid (name) ". The name may contain brackets, so the fields
// begin after the last bracket. Empty: no such process.
std::string read_stat(pid_t pid) {
  std::string text;
  if (!read_proc_file("/proc/" + std::to_string(pid) + "/stat", &text)) return "";
  const std::size_t bracket = text.rfind(')');
  return bracket == std::string::npos || bracket + 2 > text.size() ? "" : text.substr(bracket + 2);
}

// The number behind `name`; 0: there is none.
std::uint64_t number_after(const std::string& text, std::string_view name) {
  const std::size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + name.size(), nullptr, 10);
}

struct ProcessFacts {
  char state = 0;
  pid_t parent = 0;
  pid_t session = 0;
  std::uint64_t ticks = 0;  // CPU time, with that of children that were waited for
};

ProcessFacts facts_of(const std::string& stat) {
  // The fields after the name, from 1: state parent group session …
  constexpr int kParent = 2, kSession = 4, kFirstTime = 12, kLastTime = 15;
  ProcessFacts facts;
  facts.state = stat.empty() ? '\0' : stat[0];
  const char* at = stat.c_str();
  for (int field = 1; field <= kLastTime && *at != '\0'; ++field) {
    const std::uint64_t value = std::strtoull(at, nullptr, 10);
    if (field == kParent) facts.parent = static_cast<pid_t>(value);
    if (field == kSession) facts.session = static_cast<pid_t>(value);
    if (field >= kFirstTime) facts.ticks += value;
    while (*at != '\0' && *at != ' ') ++at;
    while (*at == ' ') ++at;
  }
  return facts;
}

std::uint64_t io_bytes_of(pid_t pid) {
  std::string io;
  if (!read_proc_file("/proc/" + std::to_string(pid) + "/io", &io)) return 0;
  // Of system calls, and of the disk: a file that is mapped to memory is read without calls.
  return number_after(io, "rchar: ") + number_after(io, "wchar: ") +
         number_after(io, "\nread_bytes: ");
}

// One for each process group.
int polling_threads_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  const Dir tasks(::opendir(folder.c_str()));
  if (tasks == nullptr) return 0;
  int count = 0;
  std::string name;
  while (const dirent* task = ::readdir(tasks.get())) {
    if (task->d_name[0] == '.') continue;
    if (!read_proc_file(folder + "/" + task->d_name + "/comm", &name)) continue;
    count += name == "gloo_tcp_loop\n" || name == "gloo_tcp_loop" ? 1 : 0;
  }
  return count;
}

}  // namespace

bool for_each_process(const std::function<bool(pid_t)>& visit) {
  const Dir processes(::opendir("/proc"));
  if (processes == nullptr) return false;
  const pid_t self = ::getpid();
  bool is_mounted = false;
  while (const dirent* process = ::readdir(processes.get())) {
    const auto pid = static_cast<pid_t>(std::strtol(process->d_name, nullptr, 10));
    is_mounted = is_mounted || pid == self;
    if (pid > 0 && !visit(pid)) break;
  }
  return is_mounted;
}

bool list_children_by_scan(std::vector<pid_t>* children) {
  children->clear();
  return for_each_process([&, self = ::getpid()](pid_t pid) {
    const std::string stat = read_stat(pid);  // "state parent …"
    if (stat.size() > 2 && std::strtol(stat.c_str() + 2, nullptr, 10) == self) {
      children->push_back(pid);
    }
    return true;
  });
}

bool list_children(std::vector<pid_t>* children) {
  children->clear();
  if (add_children(children)) return true;
  return list_children_by_scan(children);
}

ChildrenFile::ChildrenFile() : file_(::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC)) {}

bool ChildrenFile::list(std::vector<pid_t>* children) {
  std::string text;
  const bool is_read =
      file_.valid() && ::lseek(file_.get(), 0, SEEK_SET) == 0 && read_all(file_.get(), &text);
  if (!is_read) return list_children(children);
  children->clear();
  parse_children(text, children);
  return true;
}

bool read_proc_file(const std::string& path, std::string* text) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.valid() && read_all(file.get(), text);
}

Cleaner cleaner_of(pid_t pid) {
  std::string command;  // each argument ends with a NUL
  if (!read_proc_file("/proc/" + std::to_string(pid) + "/cmdline", &command)) return Cleaner::kNone;
  if (command.find("resource_tracker import main") != std::string::npos) return Cleaner::kTracker;
  const std::string program = command.substr(0, command.find('\0'));
  return program.substr(program.rfind('/') + 1) == "torch_shm_manager" ? Cleaner::kShmManager
                                                                       : Cleaner::kNone;
}

std::string function_of_stack(std::string_view stack) {
  constexpr std::string_view kAddress = "] ";  // "[<0>] folio_wait_bit+0x12/0x340"
  stack = stack.substr(0, stack.find('\n'));
  const std::size_t at = stack.find(kAddress);
  if (at == stack.npos) return "";
  stack.remove_prefix(at + kAddress.size());
  return std::string(stack.substr(0, stack.find('+')));
}

bool is_python_with_handler(pid_t pid, int signal) {
  constexpr std::string_view kCaught = "\nSigCgt:\t";
  constexpr int kHexadecimal = 16;
  const std::string directory = "/proc/" + std::to_string(pid);
  char program[4096];
  const ssize_t size = ::readlink((directory + "/exe").c_str(), program, sizeof program);
  std::string_view name(program, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0
  std::string status;
  if (!name.starts_with("python") || !read_proc_file(directory + "/status", &status)) return false;
  const std::size_t at = status.find(kCaught);
  if (at == std::string::npos) return false;
  const auto caught = std::strtoull(status.c_str() + at + kCaught.size(), nullptr, kHexadecimal);
  return signal > 0 && signal != SIGINT &&
         ((caught >> static_cast<unsigned>(signal - 1)) & 1U) != 0;
}

ProcessWait wait_of(pid_t pid) {
  ProcessWait wait;
  const std::string stat = read_stat(pid);
  if (!stat.empty()) wait.state = stat[0];
  const std::string directory = "/proc/" + std::to_string(pid);
  read_proc_file(directory + "/wchan", &wait.channel);
  // Some kernels have no wchan. The stack is for root only.
  std::string stack;
  const bool has_channel = !wait.channel.empty() && wait.channel != "0";
  if (!has_channel && wait.state == 'D' && read_proc_file(directory + "/stack", &stack)) {
    wait.channel = function_of_stack(stack);
  }
  return wait;
}

std::string describe_wait(pid_t pid) {
  const ProcessWait wait = wait_of(pid);
  if (wait.state == 0) return "gone";
  std::string text = std::string("state ") + wait.state;
  if (!wait.channel.empty() && wait.channel != "0") text += " in " + wait.channel;
  return text;
}

std::vector<ProcessWork> work_of(const std::vector<pid_t>& roots) {
  const auto ticks_per_second = static_cast<std::uint64_t>(std::max(::sysconf(_SC_CLK_TCK), 1L));
  std::map<pid_t, ProcessFacts> all;
  for_each_process([&](pid_t pid) {
    const std::string stat = read_stat(pid);
    if (!stat.empty()) all.emplace(pid, facts_of(stat));
    return true;
  });
  const auto root_of = [&](pid_t pid, const ProcessFacts& facts) {
    constexpr int kDepthMax = 64;
    for (int depth = 0; depth < kDepthMax; ++depth) {
      const auto found = std::find(roots.begin(), roots.end(), pid);
      if (found != roots.end()) return found;
      const auto process = all.find(pid);
      if (process == all.end()) break;
      pid = process->second.parent;
    }
    return std::find(roots.begin(), roots.end(), facts.session);
  };
  std::vector<ProcessWork> works(roots.size());
  for (const auto& [pid, facts] : all) {
    const auto root = root_of(pid, facts);
    if (root == roots.end()) continue;
    ProcessWork& work = works[static_cast<std::size_t>(root - roots.begin())];
    work.cpu += std::chrono::milliseconds(facts.ticks * 1000 / ticks_per_second);
    work.io_bytes += io_bytes_of(pid);
    work.polling_threads += polling_threads_of(pid);
    work.is_at_work = work.is_at_work || facts.state == 'R' || facts.state == 'D';
  }
  return works;
}

bool is_suspended(pid_t pid) {
  const char state = wait_of(pid).state;
  return state == 'T' || state == 't' || state == 'D';
}

}  // namespace elastic::os
