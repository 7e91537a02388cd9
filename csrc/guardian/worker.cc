#include "guardian/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "os/process/process_tree.h"

// Theory of operation. All data of the child is prepared before the fork; the child only makes
// system calls. It creates a session, sets its parent-death signal and CPU affinity, opens its
// files, changes its directory, unblocks all signals and executes the program. The guardian has
// reset the signal dispositions for all its children (main.cc), and its descriptors above 2 are
// close-on-exec.
//
// Opening a file, changing the directory and executing may block on a mount that does not respond.
// The child records each step in shared memory first, so that the guardian can report it.

namespace elastic::guardian {
namespace {

constexpr std::string_view kDefaultPath = "/bin:/usr/bin";  // as execvp's, without PATH

std::string_view search_path(const StartRequest& request) {
  constexpr std::string_view kName = "PATH=";
  for (const std::string_view item : request.env) {
    if (item.substr(0, kName.size()) == kName) return item.substr(kName.size());
  }
  return kDefaultPath;
}

std::vector<std::string> find_candidates(const StartRequest& request) {
  const std::string program(request.argv[0]);
  if (program.find('/') != std::string::npos) return {program};
  std::vector<std::string> candidates;
  std::string_view path = search_path(request);
  while (true) {
    const std::size_t colon = path.find(':');
    const std::string folder(path.substr(0, colon));
    // An empty element is the current directory, by POSIX.
    candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
    if (colon == std::string_view::npos) return candidates;
    path.remove_prefix(colon + 1);
  }
}

std::vector<char*> pointers(const std::vector<std::string_view>& items) {
  std::vector<char*> out;
  out.reserve(items.size() + 1);
  // The protocol ends each string with a NUL; execve does not write to them.
  for (const std::string_view item : items) out.push_back(const_cast<char*>(item.data()));
  out.push_back(nullptr);
  return out;
}

// The data of the child, prepared before the fork.
struct Plan {
  pid_t guardian;
  const StartProgress* progress;
  int pipe;
  char* const* argv;
  char* const* env;
  const char* cwd;
  const char* output_paths[2];  // of descriptors 1 and 2
  int stream;                   // replaces the descriptors in `passed`; negative: none
  std::uint8_t passed;
  int socket;                    // of a template; negative: none
  bool has_stdin;                // the guardian's; else /dev/null
  std::array<int, 2> inherited;  // beside 0, 1 and 2; negative: none
  const std::vector<std::string>* candidates;
  const std::vector<unsigned long>* cpu_mask;  // empty: the CPUs of the guardian
};

[[noreturn]] void fail(const Plan& plan, Stage stage, int error, int index) {
  const StartFailure failure{stage, error, index};
  // Less than PIPE_BUF: written atomically. An error means that the guardian has died.
  [[maybe_unused]] const ssize_t put = ::write(plan.pipe, &failure, sizeof failure);
  ::_exit(127);
}

void open_output(const Plan& plan, int target) {
  const char* path = plan.output_paths[target - 1];
  const std::uint8_t bit = target == STDOUT_FILENO ? kPassedStdout : kPassedStderr;
  if (plan.stream >= 0 && (plan.passed & bit) != 0) {
    if (::dup2(plan.stream, target) < 0) fail(plan, Stage::kOpen, errno, target);
    return;
  }
  if (*path == '\0') return;
  plan.progress->enter(Stage::kOpen, target);
  // O_APPEND, so that two streams to one file do not overwrite each other.
  const int file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || ::dup2(file, target) < 0) fail(plan, Stage::kOpen, errno, target);
}

// Searches PATH as execvp does: skips candidates that do not exist or are not accessible, and
// reports EACCES in preference to "not found".
[[noreturn]] void execute(const Plan& plan) {
  StartFailure worst{Stage::kExec, ENOENT, kNoCandidate};
  int index = 0;
  for (const std::string& candidate : *plan.candidates) {
    plan.progress->enter(Stage::kExec, index);
    ::execve(candidate.c_str(), plan.argv, plan.env);
    const int error = errno;
    const bool is_there = ::access(candidate.c_str(), F_OK) == 0;
    if (error == ENOENT && is_there) fail(plan, Stage::kInterpreter, error, index);
    if (error == EACCES && is_there) worst = {Stage::kExec, EACCES, index};
    const bool goes_on = error == EACCES || error == ENOENT || error == ENOTDIR ||
                         error == ESTALE || error == ENODEV || error == ETIMEDOUT;
    if (!goes_on) fail(plan, Stage::kExec, error, index);
    if (plan.candidates->size() == 1) worst = {Stage::kExec, error, index};
    ++index;
  }
  fail(plan, worst.stage, worst.error, worst.index);
}

// The bit mask of sched_setaffinity(2), which is an array of longs.
std::vector<unsigned long> mask_of(const std::vector<std::uint32_t>& cpus) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const std::uint32_t cpu : cpus) {
    if (cpu / kBits >= mask.size()) mask.resize(cpu / kBits + 1);
    mask[cpu / kBits] |= 1UL << (cpu % kBits);
  }
  return mask;
}

void bind_to_cpus(const Plan& plan) {
  if (plan.cpu_mask->empty()) return;
  const void* const mask = plan.cpu_mask->data();
  const std::size_t bytes = plan.cpu_mask->size() * sizeof(unsigned long);
  if (::sched_setaffinity(0, bytes, static_cast<const cpu_set_t*>(mask)) != 0) {
    fail(plan, Stage::kAffinity, errno, kNoCandidate);
  }
}

[[noreturn]] void run_child(const Plan& plan) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The guardian may have died before the line above; then the parent is another process.
  if (::getppid() != plan.guardian) ::_exit(127);
  bind_to_cpus(plan);
  if (!plan.has_stdin) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) fail(plan, Stage::kOpen, errno, STDIN_FILENO);
  }
  open_output(plan, STDOUT_FILENO);
  open_output(plan, STDERR_FILENO);
  if (plan.socket >= 0 && ::dup2(plan.socket, kTemplateSocket) < 0) {
    fail(plan, Stage::kOpen, errno, kTemplateSocket);
  }
  plan.progress->enter(Stage::kChdir, kNoCandidate);
  if (*plan.cwd != '\0' && ::chdir(plan.cwd) != 0) fail(plan, Stage::kChdir, errno, kNoCandidate);
  for (const int descriptor : plan.inherited) {
    if (descriptor >= 0) ::fcntl(descriptor, F_SETFD, 0);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  execute(plan);
}

}  // namespace

StartProgress StartProgress::create() {
  StartProgress progress;
  void* const page =
      ::mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) progress.word_.reset(new (page) Word(0));
  if (progress.valid()) progress.enter(Stage::kFork, kNoCandidate);
  return progress;
}

void StartProgress::Unmap::operator()(Word* word) const { ::munmap(word, sizeof *word); }

void StartProgress::enter(Stage stage, int index) const {
  word_->store(static_cast<std::uint64_t>(stage) << 32 | static_cast<std::uint32_t>(index));
}

StartProgress::Step StartProgress::current() const {
  const std::uint64_t word = word_->load();
  return {static_cast<Stage>(word >> 32), static_cast<int>(static_cast<std::uint32_t>(word))};
}

Worker* find_worker(std::vector<Worker>* workers, std::uint32_t id) {
  const auto found = std::find_if(workers->begin(), workers->end(),
                                  [&](const Worker& one) { return one.id == id; });
  return found == workers->end() ? nullptr : &*found;
}

bool signal_alone(const SignalRequest& request, Worker* worker) {
  const bool has_handler = request.scope == SignalScope::kHandler && !worker->ended &&
                           os::is_python_with_handler(worker->pid, request.signal);
  if (request.scope != SignalScope::kLeader && !has_handler) return false;
  if (!worker->ended) ::kill(worker->pid, request.signal);
  // SIGCONT follows a stop, which is what the group is owed.
  if (has_handler && request.signal != SIGCONT) worker->awaited_signal = request.signal;
  return true;
}

os::UniqueFd open_exec_pipe(Worker* worker) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os::UniqueFd();
  worker->exec_pipe.reset(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return os::UniqueFd(ends[1]);
}

void describe(const StartRequest& request, Worker* worker) {
  worker->id = request.id;
  worker->argv0 = request.argv[0];
  worker->cwd = request.cwd;
  worker->stdout_path = request.stdout_path;
  worker->stderr_path = request.stderr_path;
}

std::vector<std::string_view> environment_of(const StartRequest& request, const Channel& channel) {
  const std::string name = std::string(worker::kVariable) + "=";
  std::vector<std::string_view> env;
  env.reserve(request.env.size() + 1);
  for (const std::string_view item : request.env) {
    if (item.substr(0, name.size()) != name) env.push_back(item);
  }
  if (channel.valid()) env.emplace_back(channel.variable());
  return env;
}

bool spawn(const StartRequest& request, pid_t guardian, int stream, int socket, Worker* worker,
           StartFailure* failure) {
  describe(request, worker);
  worker->candidates = find_candidates(request);
  const std::vector<char*> argv = pointers(request.argv);
  if (request.has_channel) worker->channel = Channel::create();
  const std::vector<char*> env = pointers(environment_of(request, worker->channel));
  const std::vector<unsigned long> cpu_mask = mask_of(request.cpus);
  const os::UniqueFd write_end = open_exec_pipe(worker);
  if (!write_end.valid()) {
    *failure = {Stage::kPipe, errno, kNoCandidate};
    return false;
  }
  worker->progress = StartProgress::create();
  if (!worker->progress.valid()) {
    *failure = {Stage::kFork, errno, kNoCandidate};
    return false;
  }
  const Plan plan{guardian,
                  &worker->progress,
                  write_end.get(),
                  argv.data(),
                  env.data(),
                  worker->cwd.c_str(),
                  {worker->stdout_path.c_str(), worker->stderr_path.c_str()},
                  stream,
                  request.passed,
                  socket,
                  request.lifetime == Lifetime::kWorker || request.kind != StartKind::kExec,
                  worker->channel.inherited(),
                  &worker->candidates,
                  &cpu_mask};
  worker->pid = ::fork();
  if (worker->pid == 0) run_child(plan);
  if (worker->pid < 0) {
    *failure = {Stage::kFork, errno, kNoCandidate};
    return false;
  }
  worker->channel.release_worker_end();
  return true;
}

std::string failed_path(const Worker& worker, const StartFailure& failure) {
  const auto index = static_cast<std::size_t>(failure.index);
  switch (failure.stage) {
    case Stage::kOpen:
      return failure.index == STDOUT_FILENO ? worker.stdout_path : worker.stderr_path;
    case Stage::kChdir: return worker.cwd;
    case Stage::kExec:
    case Stage::kInterpreter:
      if (failure.index != kNoCandidate && index < worker.candidates.size()) {
        return worker.candidates[index];
      }
      break;
    case Stage::kPipe:
    case Stage::kFork:
    case Stage::kAffinity: break;
  }
  return worker.argv0;
}

}  // namespace elastic::guardian
