#include "os/net/listener.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <vector>

#include "os/base/descriptor_limit.h"
#include "os/base/posix_error.h"
#include "os/net/port_owner.h"
#include "os/net/socket_option.h"

namespace elastic::os {
namespace {

// A connection of a client whose host disappeared is closed after two minutes.
constexpr int kListenerKeepAliveIdleSeconds = 60;
constexpr int kListenerKeepAliveIntervalSeconds = 15;
constexpr int kListenerKeepAliveProbes = 4;

enum class Families { kOne, kBoth };

void set_listener_options(int fd) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // else a restart fails until TIME_WAIT has ended
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kListenerKeepAliveIdleSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kListenerKeepAliveIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kListenerKeepAliveProbes);
}

// Returns 0 and stores the socket in `fd`; or returns errno.
int try_bind(const SocketAddress& address, Families families, UniqueFd* fd) {
  fd->reset(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd->valid()) return errno;
  set_listener_options(fd->get());
  if (address.family() == AF_INET6) {
    const int v6_only = families == Families::kOne ? 1 : 0;
    if (::setsockopt(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) != 0) {
      return errno;
    }
  }
  return ::bind(fd->get(), address.get(), address.size) == 0 ? 0 : errno;
}

// The same; also stores the port in `address`.
int try_listen(SocketAddress* address, Families families, UniqueFd* fd) {
  if (const int error = try_bind(*address, families, fd); error != 0) return error;
  // The kernel reduces the backlog to net.core.somaxconn.
  if (::listen(fd->get(), INT_MAX) != 0) return errno;
  address->size = sizeof address->storage;
  return ::getsockname(fd->get(), address->get(), &address->size) == 0 ? 0 : errno;
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
  const bool everywhere = host.empty();
  auto found = look_up(everywhere ? "::" : host, port);
  // A name to bind is this machine's own: if it does not resolve, a retry does not help.
  if (found.status().code() == StatusCode::kUnavailable) {
    return Status(StatusCode::kInvalidArgument, std::string(found.status().message()));
  }
  if (!found.ok()) return found.status();

  SocketAddress address = found->front();
  UniqueFd fd;
  int error = try_listen(&address, everywhere ? Families::kBoth : Families::kOne, &fd);
  if (everywhere && (error == EAFNOSUPPORT || error == EADDRNOTAVAIL)) {
    auto v4 = look_up("0.0.0.0", port);  // a machine without IPv6
    if (!v4.ok()) return v4.status();
    address = v4->front();
    error = try_listen(&address, Families::kOne, &fd);
  }
  if (error != 0) return listen_error(address, error);
  return Listener(std::move(fd), address);
}

Status Listener::check(const std::string& host, std::uint16_t port) {
  const bool everywhere = host.empty();
  const auto found = look_up(everywhere ? "::" : host, port);
  if (!found.ok()) return found.status();
  UniqueFd fd;
  const int error = try_bind(found->front(), everywhere ? Families::kBoth : Families::kOne, &fd);
  const bool is_without_v6 = everywhere && (error == EAFNOSUPPORT || error == EADDRNOTAVAIL);
  if (error == 0 || is_without_v6) return {};
  return posix_error("cannot listen on " + found->front().text(), error);
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

}  // namespace elastic::os
