#pragma once

// Facts about processes, read from /proc.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/time.h"
#include "os/base/fd.h"

namespace elastic::os {

// The direct children of all threads of this process, including zombies and adopted orphans (see
// subreaper), in no order. False if /proc does not list them.
// Any thread; may miss processes that are forked or die during the call.
bool list_children(std::vector<pid_t>* children);
// The same by a scan of all processes: list_children() uses it on a kernel without
// CONFIG_PROC_CHILDREN.
bool list_children_by_scan(std::vector<pid_t>* children);

// Calls `visit` for every process of this pid namespace until it returns false. False without
// /proc.
bool for_each_process(const std::function<bool(pid_t)>& visit);

// list_children() for a process with one thread, which needs no free descriptor later. Not
// thread-safe.
class ChildrenFile {
 public:
  ChildrenFile();
  bool list(std::vector<pid_t>* children);

 private:
  UniqueFd file_;  // invalid on a kernel without CONFIG_PROC_CHILDREN
};

// The whole text of a file of /proc; false when it cannot be read.
bool read_proc_file(const std::string& path, std::string* text);

// Processes that remove what another process leaves in /dev/shm, once that has died. SIGKILL for
// one of them leaves it there for good.
enum class Cleaner : std::uint8_t {
  kNone,
  // The resource tracker of multiprocessing or loky: ends when every process that uses it has.
  kTracker,
  // torch_shm_manager: ends two seconds after its last client, and no other process uses its names.
  kShmManager,
};
Cleaner cleaner_of(pid_t pid);

// Whether the process runs Python, and its program has set a handler for the signal: for SIGINT
// Python has one of its own, and the answer is false. False if /proc does not tell.
bool is_python_with_handler(pid_t pid, int signal);

// The state of a process ('R', 'S', 'D', …; 0: no such process), and the kernel's function in which
// it waits ("" or "0": unknown).
struct ProcessWait {
  char state = 0;
  std::string channel;
};
ProcessWait wait_of(pid_t pid);
// The innermost function of a text as /proc/<pid>/stack has it; "": there is none.
std::string function_of_stack(std::string_view stack);
// The same as text: "state D in folio_wait_bit". Unknown parts are left out.
std::string describe_wait(pid_t pid);
// Whether a process is stopped, traced or in an uninterruptible wait, so that it runs no code.
// False if /proc does not tell.
bool is_suspended(pid_t pid);

// What a process and its descendants have worked since they began, with the children that they
// have waited for. Zeros without /proc.
struct ProcessWork {
  Duration cpu{};
  std::uint64_t io_bytes = 0;  // read and written
  bool is_at_work = false;     // one of them runs, or is in an uninterruptible wait
  int polling_threads = 0;     // of gloo, which look around also when nothing happens
};
// Of each of these processes, with those of its session whose parent has ended. Scans all
// processes.
std::vector<ProcessWork> work_of(const std::vector<pid_t>& roots);

}  // namespace elastic::os
