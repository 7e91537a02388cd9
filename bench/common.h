#pragma once

// Functions that the benchmark programs share. They are small tools started by bench/run.py: any
// failure of a system call ends the program with a message.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

// Prints "<what>: <errno's text>" and exits with 1.
[[noreturn]] void die(std::string_view what);

template <typename Int>
Int check(Int result, std::string_view what) {
  if (result < 0) die(what);
  return result;
}

std::int64_t monotonic_ns();

// CPU time of all threads of a process, from /proc/<pid>/task/*/schedstat.
std::int64_t cpu_ns(pid_t pid);

// A TCP socket on 127.0.0.1 that listens on a free port, which is written to `port`.
int listen_on_loopback(std::uint16_t* port);
// A connected, blocking socket without Nagle's delay.
int connect_to_loopback(std::uint16_t port);

void send_all(int fd, std::string_view bytes);
// Exactly `size` bytes.
std::string receive(int fd, std::size_t size);

// Opens a TCPStore connection: VALIDATE, then a PING whose reply is checked.
int connect_to_tcpstore(std::uint16_t port);

// The value at the given rank of a sample (0.5: the median). REQUIRES: not empty. Sorts the sample.
double quantile(std::vector<std::int64_t>* sample, double rank);

// "--name value" pairs; an unknown name is caught by done().
class Flags {
 public:
  Flags(int argc, char** argv);
  std::string text(const std::string& name, const std::string& otherwise);
  std::int64_t number(const std::string& name, std::int64_t otherwise);
  double real(const std::string& name, double otherwise);
  // Exits with an error if an unknown flag was given.
  void done() const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace bench
