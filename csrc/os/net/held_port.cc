#include "os/net/held_port.h"

#include <cerrno>
#include <utility>

#include "os/base/posix_error.h"
#include "os/net/address.h"

namespace elastic::os {
namespace {

// Returns 0 and stores the socket in `fd` and its port in `address`; or returns errno.
int try_hold(SocketAddress* address, UniqueFd* fd) {
  fd->reset(::socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd->valid()) return errno;
  const int on = 1;
  if (::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return errno;
  if (::bind(fd->get(), address->get(), address->size) != 0) return errno;
  address->size = sizeof address->storage;
  return ::getsockname(fd->get(), address->get(), &address->size) == 0 ? 0 : errno;
}

}  // namespace

Result<HeldPort> HeldPort::open(const std::string& host, std::uint16_t port) {
  int error = 0;
  std::string text;
  // A machine without IPv6 holds the port for IPv4 only.
  for (const std::string& candidate :
       host.empty() ? std::vector<std::string>{"::", "0.0.0.0"} : std::vector<std::string>{host}) {
    auto found = look_up(candidate, port);
    if (!found.ok()) return found.status();
    SocketAddress address = found->front();
    UniqueFd fd;
    error = try_hold(&address, &fd);
    text = address.text();
    if (error == 0) return HeldPort(std::move(fd), address.port());
    if (error != EAFNOSUPPORT && error != EADDRNOTAVAIL) break;
  }
  return posix_error("cannot hold " + text, error);
}

}  // namespace elastic::os
