// A worker that writes numbered lines of 80 bytes to stdout at a fixed rate, one write for each
// line, and reports the time that it took.
//
// Usage: line_writer LINES LINES_PER_SECOND DIRECTORY
// Writes DIRECTORY/<local rank>: seconds in all, seconds within write(), and CPU seconds.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

constexpr int kLineBytes = 80;
constexpr int kLinesPerPause = 50;

double now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void sleep_until(double instant) {
  timespec time{};
  time.tv_sec = static_cast<std::time_t>(instant);
  time.tv_nsec = static_cast<long>(1e9 * (instant - static_cast<double>(time.tv_sec)));
  ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("LOCAL_RANK");
  if (argc != 4 || rank == nullptr) return 2;
  const long lines = std::atol(argv[1]);
  const double rate = std::atof(argv[2]);
  char line[kLineBytes + 1];
  std::memset(line, '.', kLineBytes);
  line[kLineBytes - 1] = '\n';
  const double begin = now();
  double writing = 0;
  for (long i = 0; i < lines; ++i) {
    if (i % kLinesPerPause == 0) sleep_until(begin + static_cast<double>(i) / rate);
    const int size = std::snprintf(line, kLineBytes, "%s %ld ", rank, i);
    line[size] = '.';
    const double before = now();
    if (::write(STDOUT_FILENO, line, kLineBytes) != kLineBytes) return 1;
    writing += now() - before;
  }
  std::FILE* result = std::fopen((std::string(argv[3]) + "/" + rank).c_str(), "w");
  if (result == nullptr) return 1;
  std::fprintf(result, "%.9f %.9f %.9f\n", now() - begin, writing, now(CLOCK_PROCESS_CPUTIME_ID));
  return std::fclose(result) == 0 ? 0 : 1;
}
