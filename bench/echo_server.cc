// The lower bound of any one-threaded TCP server: epoll_wait, and for each ready connection one
// recv and one send. It parses no request and stores no data.
//
// A client first sends two u32 in host order, the sizes of one request and of one reply; then each
// complete request is answered by that many bytes. Thus a store's traffic is echoed with the
// store's byte counts. Prints its port and runs until standard input closes.

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

namespace {

constexpr std::size_t kBufferBytes = 65536;
constexpr int kEventsMax = 64;

struct Peer {
  std::uint32_t request_bytes = 0;
  std::uint32_t reply_bytes = 0;
  std::size_t pending = 0;  // bytes of an incomplete request
};

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  bench::check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

Peer greet(int fd) {
  const int on = 1;
  bench::check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt");
  Peer peer;
  const std::string sizes = bench::receive(fd, sizeof peer.request_bytes + sizeof peer.reply_bytes);
  std::memcpy(&peer.request_bytes, sizes.data(), sizeof peer.request_bytes);
  std::memcpy(&peer.reply_bytes, sizes.data() + sizeof peer.request_bytes, sizeof peer.reply_bytes);
  return peer;
}

// False when the peer has disconnected.
bool serve(int fd, Peer* peer) {
  static std::array<char, kBufferBytes> request;
  static const std::array<char, kBufferBytes> reply{};
  const ssize_t received = recv(fd, request.data(), request.size(), 0);
  if (received <= 0) return false;
  peer->pending += static_cast<std::size_t>(received);
  const std::size_t answer = peer->pending / peer->request_bytes * peer->reply_bytes;
  peer->pending %= peer->request_bytes;
  if (answer == 0) return true;
  if (answer > reply.size()) return false;
  return send(fd, reply.data(), answer, MSG_NOSIGNAL) == static_cast<ssize_t>(answer);
}

}  // namespace

int main() {
  std::uint16_t port = 0;
  const int listener = bench::listen_on_loopback(&port);
  const int epoll = bench::check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  watch(epoll, listener);
  watch(epoll, STDIN_FILENO);
  std::printf("%d\n", port);
  std::fflush(stdout);

  std::unordered_map<int, Peer> peers;
  std::array<epoll_event, kEventsMax> events;
  for (;;) {
    const int ready = epoll_wait(epoll, events.data(), kEventsMax, -1);
    if (ready < 0 && errno != EINTR) bench::die("epoll_wait");
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == STDIN_FILENO) return 0;
      if (fd == listener) {
        const int accepted =
            bench::check(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "accept4");
        peers[accepted] = greet(accepted);
        watch(epoll, accepted);
      } else if (!serve(fd, &peers[fd])) {
        peers.erase(fd);
        close(fd);
      }
    }
  }
}
