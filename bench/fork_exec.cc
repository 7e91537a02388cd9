// The lower bound of any launcher's restart: fork and exec of N workers, and nothing else.
//
//   fork_exec --worker PATH --count N
//
// The workers write their stamps to the FIFO named by BENCH_STAMPS (stamp_worker.cc). Prints the
// CLOCK_MONOTONIC ns just before the first fork, then waits for standard input to close and ends
// the workers.

#include <csignal>
#include <cstdio>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  const std::string worker = flags.text("worker", "");
  const std::int64_t count = flags.number("count", 8);
  flags.done();

  std::vector<pid_t> pids;
  char* const worker_argv[] = {const_cast<char*>(worker.c_str()), nullptr};
  const std::int64_t begun = bench::monotonic_ns();
  for (std::int64_t i = 0; i < count; ++i) {
    const pid_t pid = bench::check(fork(), "fork");
    if (pid == 0) {
      execv(worker.c_str(), worker_argv);
      _exit(127);
    }
    pids.push_back(pid);
  }
  std::printf("%lld\n", static_cast<long long>(begun));
  std::fflush(stdout);

  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  for (const pid_t pid : pids) kill(pid, SIGKILL);
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  return 0;
}
