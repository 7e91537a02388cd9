// The worker of the worker-group tests: does one thing and prints what it observes.
//
//   stub_worker <verb> [argument]…
//
// Verbs that keep running print "ready <pid> <parent>" first.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <vector>

namespace {

void say_ready() {
  std::printf("ready %d %d\n", ::getpid(), ::getppid());
  std::fflush(stdout);
}

[[noreturn]] void stay() {
  while (true) ::pause();
}

void on_signal(int number) {
  char line[] = "got 00\n";
  line[4] = static_cast<char>('0' + number / 10);
  line[5] = static_cast<char>('0' + number % 10);
  [[maybe_unused]] const ssize_t put = ::write(STDOUT_FILENO, line, sizeof line - 1);
}

int end_by_signal(int number) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(number, SIG_DFL);  // a sanitizer's runtime handles some
  ::raise(number);
  return 99;
}

int print_descriptors() {
  std::vector<int> numbers;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != ::dirfd(folder)) numbers.push_back(number);
  }
  ::closedir(folder);
  std::sort(numbers.begin(), numbers.end());
  for (const int number : numbers) std::printf("%d\n", number);
  return 0;
}

int print_signals() {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  for (int number = 1; number < 32; ++number) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) std::printf("ignored %d\n", number);
    if (::sigismember(&mask, number) == 1) std::printf("blocked %d\n", number);
  }
  return 0;
}

// Leaves a child.
int leave_child(int code) {
  if (::fork() == 0) stay();
  return code;
}

// Leaves a grandchild in a new session, adopted by the guardian, that holds our stdout.
int leave_daemon(int code) {
  if (::fork() == 0) {
    ::setsid();
    if (::fork() == 0) {
      while (::getppid() == ::getsid(0)) ::usleep(100);  // until its parent has ended
      say_ready();
      stay();
    }
    ::_exit(0);
  }
  if (code < 0) stay();
  return code;
}

// Shared by all processes of a replicating worker, so that they end without being killed.
struct Budget {
  std::atomic<int> forks_left{1000000};
  time_t end = 0;  // on CLOCK_MONOTONIC

  bool is_spent() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec >= end || --forks_left <= 0;
  }
};

// Each of `chains` processes creates a session, forks and exits, and its child does the same, for
// at most `seconds`. No process has more than one child at a time.
void replicate(int chains, int seconds) {
  void* const page =
      ::mmap(nullptr, sizeof(Budget), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  Budget* const budget = new (page) Budget;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  budget->end = now.tv_sec + seconds;
  for (int i = 0; i < chains; ++i) {
    if (::fork() != 0) continue;
    while (!budget->is_spent()) {
      ::setsid();
      if (::fork() > 0) break;  // a fork that fails at a limit is retried
    }
    ::_exit(0);
  }
}

// Stopped (SIGSTOP) by its child, which prints "ready" when /proc shows it; ends on SIGTERM.
int be_stopped() {
  ::signal(SIGTERM, on_signal);
  if (::fork() == 0) {
    const std::string path = "/proc/" + std::to_string(::getppid()) + "/stat";
    ::kill(::getppid(), SIGSTOP);
    char line[512] = "";
    while (std::strstr(line, ") T ") == nullptr) {
      FILE* file = std::fopen(path.c_str(), "r");
      if (file == nullptr || std::fgets(line, sizeof line, file) == nullptr) ::_exit(1);
      std::fclose(file);
    }
    say_ready();
    ::_exit(0);
  }
  while (::waitpid(-1, nullptr, 0) > 0) continue;  // SIGTERM interrupts it, or has arrived before
  return 5;
}

// Has a child in the same group; both print a line when they receive the signal.
int leave_child_in_group(int number) {
  ::signal(number, on_signal);
  if (::fork() == 0) say_ready();
  stay();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? std::atoi(argv[2]) : 0;
  if (verb == "exit") return number;
  if (verb == "raise") return end_by_signal(number);
  if (verb == "descriptors") return print_descriptors();
  if (verb == "signals") return print_signals();
  if (verb == "daemon") return leave_daemon(number);
  if (verb == "leave") return leave_child(number);
  if (verb == "stopped") return be_stopped();
  if (verb == "child") return leave_child_in_group(number);
  if (verb == "arguments") {
    for (int i = 2; i < argc; ++i) std::printf("[%s]\n", argv[i]);
  } else if (verb == "environment") {
    for (char** item = environ; *item != nullptr; ++item) std::printf("%s\n", *item);
  } else if (verb == "directory") {
    char path[4096];
    std::printf("%s\n", ::getcwd(path, sizeof path));
  } else if (verb == "both") {
    std::printf("out\n");
    std::fprintf(stderr, "err\n");
  } else if (verb == "session") {
    std::printf("%d %d %d\n", ::getpid(), ::getpgid(0), ::getsid(0));
  } else if (verb == "pause") {
    say_ready();
    stay();
  } else if (verb == "replicate") {
    replicate(number, argc > 3 ? std::atoi(argv[3]) : 0);
    say_ready();
    stay();
  } else if (verb == "ignore") {
    ::signal(number, SIG_IGN);
    say_ready();
    stay();
  } else if (verb == "catch") {
    ::signal(number, on_signal);
    say_ready();
    stay();
  } else {
    return 98;
  }
  return 0;
}
