#pragma once

// Network addresses: as text, those of a name, and those of this machine.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/status.h"
#include "os/loop/registration.h"
#include "os/loop/wait.h"

namespace elastic::os {

// This machine's name, as gethostname(2) returns it; "" if it has none.
std::string host_name();

// A numeric address and port, IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  // "127.0.0.1", "::1", "fe80::1%eth0": in the form of look_up()'s `host`.
  std::string host() const;
  // "127.0.0.1:29500", "[::1]:29500".
  std::string text() const;
  // An address of 127.0.0.0/8, or ::1.
  bool is_loopback() const;
};

// The two ends of a connected socket. An IPv4 address of an IPv6 socket (::ffff:10.0.0.7) is
// converted to IPv4. A socket that is not connected has the address "?".
SocketAddress local_end(int fd);
SocketAddress peer_end(int fd);

// Parses a literal address ("10.0.0.7", "[::1]", "::ffff:10.0.0.7") and normalises it; an
// IPv4-mapped address becomes IPv4. nullopt for any other text.
std::optional<SocketAddress> parse_address(const std::string& text);

// "10.0.0.7:4711", "[::1]:4711": a literal address with a port. nullopt for any other text.
std::optional<SocketAddress> parse_address_and_port(const std::string& text);

// The addresses of `host` in the order in which to try them: the families alternate, beginning with
// the one that the resolver prefers. `host` is a literal address (brackets and a zone are allowed)
// or a name. A literal is not resolved. A name that does not resolve is kUnavailable, because name
// servers often know a machine only some time after its start. Blocks in the resolver.
Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port);

// The same within limits. The resolver cannot be interrupted, so it runs on a separate thread,
// which is detached when the limits end the wait.
Result<std::vector<SocketAddress>> look_up(const std::string& host, std::uint16_t port,
                                           const WaitLimits& limits);

struct Resolution;

// The same for a loop, which must not block.
class NameLookup final : public FdHandler {
 public:
  using Done = std::function<void(const Result<std::vector<SocketAddress>>&)>;

  // No thread is started if `loop` is turned by hand. `done` is called once, from the loop and
  // never from this constructor; it may destroy the lookup. An error if several earlier requests
  // for the name have no answer yet.
  static Result<std::unique_ptr<NameLookup>> start(EventLoop* loop, const std::string& host,
                                                   std::uint16_t port, Done done);
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;
  ~NameLookup() override;  // detaches the thread

  void on_ready(std::uint32_t events) override;

 private:
  NameLookup(std::shared_ptr<Resolution> resolution, Done done);

  const std::shared_ptr<Resolution> resolution_;  // shared with the thread
  Done done_;
  Watch watch_;
};

// This machine's addresses on all interfaces that are up, except loopback and link-local ones. See
// also host_addresses() (elastic/rendezvous_options.h).
std::vector<SocketAddress> interface_addresses();
// The local address of a connection to `peer`; "": no route.
std::string address_towards(const SocketAddress& peer);
// The local address of a connection to other networks; without a route, the first address of
// an interface. "": this machine has only loopback.
std::string primary_address();

}  // namespace elastic::os
