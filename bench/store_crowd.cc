// Many clients of one store from one address: they connect, and pass a barrier together with those
// of other such processes.
//
//   store_crowd --port N --source 127.0.0.2 --clients N --total N
//
// Each client sends VALIDATE and PING, 512 at a time. Prints "connected <ns> <ns>", when the first
// one began and when the last one had its reply, by the monotonic clock, and waits for a line on
// standard input. Then each client adds 1 to a key and waits for another key, which the client sets
// that counts to the total. Prints "passed <ns> <ns>", when the first one began and when the last
// one was released, and runs until standard input closes.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common.h"
#include "core/store/wire.h"

namespace {

namespace wire = elastic::wire;

constexpr std::size_t kOpeningMax = 512;
constexpr std::string_view kArrived = "/crowd/arrived";
constexpr std::string_view kOpen = "/crowd/open";

class Crowd {
 public:
  Crowd(std::uint16_t port, const std::string& source, std::size_t clients, std::int64_t total)
      : clients_(clients), total_(total) {
    server_.sin_family = source_.sin_family = AF_INET;
    server_.sin_port = htons(port);
    server_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::inet_pton(AF_INET, source.c_str(), &source_.sin_addr) != 1) bench::die("--source");
    epoll_ = bench::check(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  }

  void connect() {
    const std::int64_t begun = bench::monotonic_ns();
    std::size_t opened = 0;
    while (num_done_ < clients_.size()) {
      for (; opened < clients_.size() && opened - num_done_ < kOpeningMax; ++opened) open(opened);
      serve();
    }
    report("connected", begun);
  }

  void pass() {
    num_done_ = 0;
    const std::int64_t begun = bench::monotonic_ns();
    std::string request;
    wire::append_number_request(&request, wire::Opcode::kAdd, kArrived, 1);
    for (Client& client : clients_) {
      client.expected = sizeof(std::int64_t);
      bench::send_all(client.fd, request);
    }
    while (num_done_ < clients_.size()) serve();
    report("passed", begun);
  }

 private:
  struct Client {
    int fd = -1;
    std::size_t expected = 0;  // bytes of the next reply
  };

  void open(std::size_t index) {
    Client& client = clients_[index];
    client.fd =
        bench::check(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
    const int one = 1;
    ::setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    // The port is chosen for the pair of addresses, so that each source has its own range.
    ::setsockopt(client.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    bench::check(::bind(client.fd, reinterpret_cast<const sockaddr*>(&source_), sizeof source_),
                 "bind");
    const int result =
        ::connect(client.fd, reinterpret_cast<const sockaddr*>(&server_), sizeof server_);
    if (result != 0 && errno != EINPROGRESS) bench::die("connect");
    watch(EPOLL_CTL_ADD, index, EPOLLOUT);
  }

  void watch(int operation, std::size_t index, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = index;
    bench::check(::epoll_ctl(epoll_, operation, clients_[index].fd, &event), "epoll_ctl");
  }

  void serve() {
    epoll_event events[256];
    const int count = ::epoll_wait(epoll_, events, 256, -1);
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(events[i].data.u64);
      if ((events[i].events & EPOLLOUT) != 0) {
        greet(index);
      } else {
        receive(&clients_[index]);
      }
    }
  }

  void greet(std::size_t index) {
    std::string greeting;
    wire::append_validate(&greeting);
    wire::append_ping(&greeting, 1);
    clients_[index].expected = sizeof(std::uint32_t);
    bench::send_all(clients_[index].fd, greeting);
    watch(EPOLL_CTL_MOD, index, EPOLLIN);
  }

  // The replies are to PING, to ADD, and to WAIT. They are short, and arrive whole.
  void receive(Client* client) {
    char bytes[sizeof(std::int64_t)];
    const ssize_t got = ::recv(client->fd, bytes, client->expected, 0);
    if (got != static_cast<ssize_t>(client->expected)) bench::die("the store closed a connection");
    if (client->expected != sizeof(std::int64_t)) {
      ++num_done_;
      return;
    }
    std::string request;
    if (wire::load_integer<std::int64_t>(bytes) == total_) {
      wire::append_key_value_request(&request, wire::Opcode::kSet, kOpen, "1");
    }
    wire::append_list_header(&request, wire::Opcode::kWait, 1);
    wire::append_bytes(&request, kOpen);
    client->expected = 1;
    bench::send_all(client->fd, request);
  }

  static void report(const char* what, std::int64_t begun) {
    std::printf("%s %lld %lld\n", what, static_cast<long long>(begun),
                static_cast<long long>(bench::monotonic_ns()));
    std::fflush(stdout);
  }

  std::vector<Client> clients_;
  const std::int64_t total_;
  sockaddr_in server_{};
  sockaddr_in source_{};
  int epoll_ = -1;
  std::size_t num_done_ = 0;
};

// False: standard input was closed.
bool wait_for_line() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) == 1) {
    if (byte == '\n') return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  const auto port = static_cast<std::uint16_t>(flags.number("port", 0));
  const std::string source = flags.text("source", "127.0.0.1");
  const auto clients = static_cast<std::size_t>(flags.number("clients", 1000));
  const std::int64_t total = flags.number("total", 1000);
  flags.done();
  Crowd crowd(port, source, clients, total);
  crowd.connect();
  if (!wait_for_line()) return 0;
  crowd.pass();
  while (wait_for_line()) {
  }
}
