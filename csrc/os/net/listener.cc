#include "os/net/listener.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "os/base/fd.h"
#include "os/base/posix_error.h"
#include "os/base/process.h"
#include "os/loop/clock.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/dialer.h"

// Theory of operation of the search for a port's owner. /proc/net/tcp and tcp6 list each socket
// with its port and its inode. A process with an open socket has a link "socket:[inode]" in
// /proc/<pid>/fd.

namespace elastic::os {
namespace {

// A connection of a client whose host disappeared is closed after two minutes.
constexpr int kListenerKeepAliveIdleSeconds = 60;
constexpr int kListenerKeepAliveIntervalSeconds = 15;
constexpr int kListenerKeepAliveProbes = 4;

constexpr unsigned kStateListen = 0x0A;
constexpr std::size_t kCommandLineShown = 80;
constexpr Duration kOwnerSearchMax = std::chrono::milliseconds(100);

void set_listener_options(int fd) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // else a restart fails until TIME_WAIT has ended
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kListenerKeepAliveIdleSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kListenerKeepAliveIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kListenerKeepAliveProbes);
}

// A bound socket and its address with the real port; or the errno, and the address that failed.
struct Bound {
  UniqueFd fd = {};
  SocketAddress address = {};
  int error = 0;
};

Bound try_bind(const SocketAddress& address, bool is_v6_only) {
  const auto failed = [&] { return Bound{.address = address, .error = errno}; };
  Bound bound{
      .fd = UniqueFd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      .address = address};
  const int fd = bound.fd.get();
  if (!bound.fd.valid()) return failed();
  set_listener_options(fd);
  const int v6_only = is_v6_only ? 1 : 0;
  if (address.family() == AF_INET6 &&
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) != 0) {
    return failed();
  }
  bound.address.size = sizeof bound.address.storage;
  if (::bind(fd, address.get(), address.size) != 0 ||
      ::getsockname(fd, bound.address.get(), &bound.address.size) != 0) {
    return failed();
  }
  return bound;
}

// `host` as Listener::open() has it. Errors: those of look_up().
Result<Bound> bind_to(const std::string& host, std::uint16_t port) {
  const bool everywhere = host.empty();
  const auto found = look_up(everywhere ? "::" : host, port);
  if (!found.ok()) return found.status();
  Bound bound = try_bind(found->front(), !everywhere);
  if (everywhere && (bound.error == EAFNOSUPPORT || bound.error == EADDRNOTAVAIL)) {
    const auto v4 = look_up("0.0.0.0", port);  // a machine without IPv6
    if (!v4.ok()) return v4.status();
    bound = try_bind(v4->front(), false);
  }
  return bound;
}

// The inodes of the sockets that listen on `port`.
std::vector<std::uint64_t> listening_inodes(std::uint16_t port) {
  std::vector<std::uint64_t> inodes;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      unsigned local_port = 0;
      unsigned state = 0;
      std::uint64_t inode = 0;
      const int fields = std::sscanf(
          line.c_str(), " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*u %" SCNu64,
          &local_port, &state, &inode);
      if (fields == 3 && local_port == port && state == kStateListen) inodes.push_back(inode);
    }
  }
  return inodes;
}

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory.c_str()), &::closedir);
  while (const dirent* entry = dir == nullptr ? nullptr : ::readdir(dir.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

bool has_socket(const std::string& pid, const std::vector<std::uint64_t>& inodes) {
  const std::string directory = "/proc/" + pid + "/fd/";
  for (const std::string& name : entries(directory)) {
    char target[64];
    const ssize_t size = ::readlink((directory + name).c_str(), target, sizeof target - 1);
    if (size <= 0) continue;
    target[size] = '\0';
    std::uint64_t inode = 0;
    if (std::sscanf(target, "socket:[%" SCNu64 "]", &inode) != 1) continue;
    if (std::find(inodes.begin(), inodes.end(), inode) != inodes.end()) return true;
  }
  return false;
}

std::string command_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  while (!command.empty() && command.back() == '\0') command.pop_back();
  // Arguments end in NUL. Control characters must not get into a message.
  std::replace_if(
      command.begin(), command.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  if (command.size() > kCommandLineShown) command = command.substr(0, kCommandLineShown) + "...";
  return command;
}

Status listen_error(const SocketAddress& address, int error) {
  Status status = posix_error("cannot listen on " + address.text(), error);
  if (error != EADDRINUSE) return status;
  const std::string owner = describe_port_owner(address.port());
  return owner.empty() ? status
                       : Status(status.code(), std::string(status.message()) + " by " + owner);
}

}  // namespace

Result<Listener> Listener::open(const std::string& host, std::uint16_t port) {
  auto bound = bind_to(host, port);
  // A name to bind is this machine's own: if it does not resolve, a retry does not help.
  if (bound.status().code() == StatusCode::kUnavailable) {
    return Status(StatusCode::kInvalidArgument, std::string(bound.status().message()));
  }
  if (!bound.ok()) return bound.status();
  // The kernel reduces the backlog to net.core.somaxconn.
  if (bound->error == 0 && ::listen(bound->fd.get(), INT_MAX) != 0) bound->error = errno;
  if (bound->error != 0) return listen_error(bound->address, bound->error);
  return Listener(std::move(bound->fd), bound->address);
}

Status Listener::check(const std::string& host, std::uint16_t port) {
  const auto bound = bind_to(host, port);
  if (!bound.ok()) return bound.status();
  if (bound->error == 0) return {};
  return posix_error("cannot listen on " + bound->address.text(), bound->error);
}

// The kernel returns the lowest free number, so all lower numbers are in use.
bool Listener::is_reserved(int fd) const {
  const std::size_t limit = descriptor_limit();
  return static_cast<std::size_t>(fd) + std::min(reserved_, limit / 4) >= limit;
}

bool Listener::has_room() const {
  const UniqueFd next(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  return next.valid() && !is_reserved(next.get());
}

Listener::AcceptStatus Listener::accept(UniqueFd* connection, SocketAddress* peer) {
  if (was_reserved_ && !has_room()) {
    pollfd waiting{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, 0) == 0 ? AcceptStatus::kEmpty : AcceptStatus::kExhausted;
  }
  SocketAddress from;
  from.size = sizeof from.storage;
  connection->reset(::accept4(fd_.get(), from.get(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection->valid()) {
    was_reserved_ = reserved_ > 0 && is_reserved(connection->get());
    if (peer != nullptr) *peer = from;
    return AcceptStatus::kAccepted;
  }
  return failed_accept(errno);
}

Listener::AcceptStatus Listener::failed_accept(int error) {
  switch (error) {
    case EAGAIN: return AcceptStatus::kEmpty;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM: return AcceptStatus::kExhausted;
    default: return AcceptStatus::kGone;  // an error of the new connection, see accept(2)
  }
}

ListenerProbe::ListenerProbe(EventLoop* loop, const SocketAddress& address, Duration limit,
                             Report report)
    : loop_(loop), report_(std::move(report)), limit_(loop, [this] { finish(Outcome::kUnknown); }) {
  limit_.arm(add_saturating(loop->now(), limit));
  begin(address);
}

void ListenerProbe::begin(const SocketAddress& address) {
  auto fd = start_connecting(address);
  if (!fd.ok()) return limit_.arm(loop_->now());
  auto watch = loop_->watch(fd->get(), EPOLLOUT, this);
  if (!watch.ok()) return limit_.arm(loop_->now());
  fd_ = *std::move(fd);
  watch_ = *std::move(watch);
}

void ListenerProbe::on_ready(std::uint32_t) {
  if (!is_connected_) {
    const int error = connect_result(fd_.get());
    if (error != 0) return finish(error == ECONNREFUSED ? Outcome::kRefused : Outcome::kUnknown);
    is_connected_ = true;
    limit_.disarm();
    watch_.modify(EPOLLIN);
    return report(Outcome::kAnswered);
  }
  char byte = 0;
  const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  finish(got < 0 && errno == ECONNRESET ? Outcome::kRefused : Outcome::kUnknown);
}

void ListenerProbe::finish(Outcome found) {
  limit_.disarm();
  watch_.reset();
  fd_.reset();
  report(found);
}

void ListenerProbe::report(Outcome found) {
  const Report keep = report_;  // this may be destroyed
  keep(found);
}

Result<ReservedPort> ReservedPort::open(const std::string& host, std::uint16_t port) {
  auto bound = bind_to(host, port);
  if (!bound.ok()) return bound.status();
  if (bound->error != 0) return posix_error("cannot hold " + bound->address.text(), bound->error);
  return ReservedPort(std::move(bound->fd), bound->address.port());
}

std::string describe_port_owner(std::uint16_t port) {
  const std::vector<std::uint64_t> inodes = listening_inodes(port);
  if (inodes.empty()) return "";
  // A loop may be waiting; on a host with thousands of processes the owner is left out.
  const Instant deadline = monotonic_now() + kOwnerSearchMax;
  for (const std::string& name : entries("/proc")) {
    if (monotonic_now() >= deadline) break;
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    if (has_socket(name, inodes)) return "pid " + name + " (" + command_of(name) + ")";
  }
  return "";
}

}  // namespace elastic::os
