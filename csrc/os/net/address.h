#pragma once

// Network addresses and the look-up of names.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/status.h"
#include "os/loop/wait.h"

namespace elastic::os {

// A numeric address and port, IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  // "127.0.0.1", "::1", "fe80::1%eth0": as `host` of look_up takes it.
  std::string host() const;
  // "127.0.0.1:29500", "[::1]:29500".
  std::string text() const;
  // An address of 127.0.0.0/8, or ::1: it means another host to every host.
  bool is_loopback() const;
};

// The two ends of a connected socket. IPv4 that arrived at an IPv6 socket (::ffff:10.0.0.7) is
// shown as IPv4. A socket that is not connected has the address "?".
SocketAddress local_end(int fd);
SocketAddress peer_end(int fd);

// A literal address ("10.0.0.7", "[::1]", "::ffff:10.0.0.7") in its plain form, IPv4 where it is
// IPv4; nullopt for anything else.
std::optional<SocketAddress> parse_address(const std::string& text);

// The addresses of `host` in the order in which to try them: the families take turns, beginning
// with the one that the resolver prefers. `host` is a literal address (brackets and a zone are
// fine) or a name. A literal is not looked up. A name that does not resolve is kUnavailable, since
// name servers often learn of a machine after it has started. Blocks in the resolver as long as
// that takes.
Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port);

// The same within limits. The resolver cannot be interrupted, so a name is looked up on a thread,
// which is left to finish alone when the limits end the wait.
Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port,
                                           const WaitLimits& limits);

}  // namespace elastic::os
