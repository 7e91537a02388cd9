// A worker that reports when it runs and otherwise costs nothing.
//
//   stamp_worker [path]
//
// Writes "start|term|done <pid> <CLOCK_MONOTONIC ns>" to the FIFO or file at `path` (else the
// variable BENCH_STAMPS): at its start, at SIGTERM, which ends it, and at SIGUSR1, which ends it
// with success. Each is one write of fewer than PIPE_BUF bytes, so lines of many workers do not
// mix. It uses only the C library, so its start is as fast as possible.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <unistd.h>

namespace {

void stamp(int fd, const char* what, const timespec& at) {
  char line[64];
  const int size = std::snprintf(line, sizeof line, "%s %d %lld\n", what, getpid(),
                                 static_cast<long long>(at.tv_sec) * 1'000'000'000 + at.tv_nsec);
  if (write(fd, line, static_cast<size_t>(size)) != size) _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const char* path = argc > 1 ? argv[1] : std::getenv("BENCH_STAMPS");
  const int fd = path == nullptr ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) {
    std::perror("stamp_worker: the stamps' file");
    return 1;
  }
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGUSR1);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  stamp(fd, "start", now);
  int signal = 0;
  sigwait(&ends, &signal);
  clock_gettime(CLOCK_MONOTONIC, &now);
  stamp(fd, signal == SIGUSR1 ? "done" : "term", now);
  return signal == SIGUSR1 ? 0 : 128 + SIGTERM;
}
