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
#include <sys/socket.h>
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

// Of csrc/guardian/template.h, without text.
void send_to_guardian(int socket, char kind, int pid, int descriptor) {
  char packet[12] = {kind};  // id 0
  std::memcpy(packet + 8, &pid, sizeof pid);
  iovec data{packet, sizeof packet};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ::sendmsg(socket, &message, 0);
}

// A child of the guardian that waits for its release. Its pid.
int fork_orphan(int release, int released, int code) {
  int pids[2];
  if (::pipe(pids) != 0) return -1;
  if (const pid_t parent = ::fork(); parent > 0) {
    ::waitpid(parent, nullptr, 0);
    int pid = -1;
    return ::read(pids[0], &pid, sizeof pid) == sizeof pid ? pid : -1;
  }
  if (const pid_t worker = ::fork(); worker != 0) {
    [[maybe_unused]] const ssize_t put = ::write(pids[1], &worker, sizeof worker);
    ::_exit(0);
  }
  ::setsid();
  ::close(released);
  char byte = 0;
  ::_exit(::read(release, &byte, 1) == 1 ? code : 1);
}

// Forks the worker 0, which exits with `code`, once a writer has opened the named pipe `gate`.
int be_template(const char* gate, int code) {
  constexpr int kSocket = 3;
  constexpr char kReady = 2;
  constexpr char kForked = 5;
  ::close(::open(gate, O_RDONLY));
  send_to_guardian(kSocket, kReady, 0, -1);
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(kSocket, &message, 0) != 1) return 1;
  int release[2];
  if (::pipe(release) != 0) return 1;
  const int pid = fork_orphan(release[0], release[1], code);
  send_to_guardian(kSocket, kForked, pid, release[1]);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  for (std::size_t at = CMSG_LEN(0); header != nullptr && at < header->cmsg_len;
       at += sizeof(int)) {
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(header) + (at - CMSG_LEN(0)), sizeof passed);
    ::close(passed);
  }
  ::close(release[1]);
  stay();
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
  if (verb == "template" && argc > 3) return be_template(argv[2], std::atoi(argv[3]));
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
