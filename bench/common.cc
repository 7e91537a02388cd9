#include "common.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/store/wire.h"

namespace bench {

namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

void die(std::string_view what) {
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(what.size()), what.data(),
               std::strerror(errno));
  std::exit(1);
}

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::int64_t cpu_ns(pid_t pid) {
  std::int64_t total = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::int64_t on_cpu = 0;
    std::ifstream(task.path() / "schedstat") >> on_cpu;
    total += on_cpu;
  }
  return total;
}

int listen_on_loopback(std::uint16_t* port) {
  const int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  check(bind(fd, reinterpret_cast<sockaddr*>(&address), size), "bind");
  check(listen(fd, SOMAXCONN), "listen");
  check(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  *port = ntohs(address.sin_port);
  return fd;
}

int connect_to_loopback(std::uint16_t port) {
  const int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  const sockaddr_in address = loopback(port);
  check(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), "connect");
  const int on = 1;
  check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt TCP_NODELAY");
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = check(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), "send");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string receive(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  if (size > 0 &&
      check(recv(fd, bytes.data(), size, MSG_WAITALL), "recv") != static_cast<ssize_t>(size)) {
    errno = ECONNRESET;
    die("recv");
  }
  return bytes;
}

int connect_to_tcpstore(std::uint16_t port) {
  const int fd = connect_to_loopback(port);
  std::string hello;
  elastic::wire::append_validate(&hello);
  elastic::wire::append_ping(&hello, static_cast<std::uint32_t>(getpid()));
  send_all(fd, hello);
  receive(fd, sizeof(std::uint32_t));
  return fd;
}

double quantile(std::vector<std::int64_t>* sample, double rank) {
  std::sort(sample->begin(), sample->end());
  const auto last = static_cast<double>(sample->size() - 1);
  return static_cast<double>((*sample)[static_cast<std::size_t>(rank * last)]);
}

Flags::Flags(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
  if (argc % 2 == 0) {
    std::fprintf(stderr, "%s: no value for %s\n", argv[0], argv[argc - 1]);
    std::exit(2);
  }
}

std::string Flags::text(const std::string& name, const std::string& otherwise) {
  const auto found = values_.extract("--" + name);
  return found.empty() ? otherwise : found.mapped();
}

std::int64_t Flags::number(const std::string& name, std::int64_t otherwise) {
  const std::string value = text(name, "");
  return value.empty() ? otherwise : std::stoll(value);
}

double Flags::real(const std::string& name, double otherwise) {
  const std::string value = text(name, "");
  return value.empty() ? otherwise : std::stod(value);
}

void Flags::done() const {
  if (values_.empty()) return;
  std::fprintf(stderr, "unknown flag %s\n", values_.begin()->first.c_str());
  std::exit(2);
}

}  // namespace bench
