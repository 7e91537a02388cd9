#pragma once

// TCP ports of this machine: listening sockets, ports that are reserved for other programs, who
// listens on a port, and when a listening socket of any machine no longer exists.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/registration.h"
#include "os/net/address.h"

namespace elastic::os {

// A listening TCP socket.
//
// One thread at a time. Accepted connections are non-blocking and inherit the options set here: no
// delay of small segments, and keepalive probes, so that the disappearance of a peer's host is
// detected.
class Listener {
 public:
  // `host`: a literal address (bound exactly: "::" is IPv6 only), a name (its first address; blocks
  // in the resolver), or "" for every interface, both families. Port 0: any free port. Errors:
  // kInvalidArgument (not an address of this machine, or a name that does not resolve),
  // kUnavailable (port in use; the message names the owner if /proc shows it), kResourceExhausted.
  static Result<Listener> open(const std::string& host, std::uint16_t port);

  // The result that open() would probably have now, without the search for the port's owner, which
  // is slow.
  static Status check(const std::string& host, std::uint16_t port);

  enum class AcceptStatus : std::uint8_t {
    kAccepted,
    kEmpty,      // no connection waits
    kGone,       // the waiting connection was closed; others may wait
    kExhausted,  // no descriptor or memory: the connection stays in the queue; pause accepting
  };
  // `peer`: receives the address of the peer; may be null.
  AcceptStatus accept(UniqueFd* connection, SocketAddress* peer = nullptr);
  // What the errno of accept(2) means.
  static AcceptStatus failed_accept(int error);
  // From now on accept() leaves this many descriptors to the rest of the process (at most a quarter
  // of its limit).
  void reserve_descriptors(std::size_t count) { reserved_ = count; }

  int fd() const { return fd_.get(); }
  const SocketAddress& address() const { return address_; }  // as bound, with the real port
  void close() { fd_.reset(); }

 private:
  Listener(UniqueFd fd, const SocketAddress& address) : fd_(std::move(fd)), address_(address) {}
  bool is_reserved(int fd) const;
  bool has_room() const;
  UniqueFd fd_;
  SocketAddress address_;
  std::size_t reserved_ = 0;
  bool was_reserved_ = false;  // the last connection took a reserved descriptor
};

// Connects to a listening socket, whose owner accepts no connections or closes them at once, and
// reports when the socket no longer exists.
//
// Loop thread only. The kernel makes the connection, whatever the owner does, and resets it when
// the last process that holds the socket closes it or ends.
class ListenerProbe final : private FdHandler {
 public:
  enum class Outcome : std::uint8_t {
    kAnswered,  // the connection was made; one of the others may follow
    kRefused,   // or reset: nothing listens there
    kUnknown,   // no answer within the limit, no route, closed in order by the owner, …
  };
  // May destroy the probe.
  using Report = std::function<void(Outcome)>;

  // Reports from the loop, never from this constructor. `limit`: for the connection to be made.
  ListenerProbe(EventLoop* loop, const SocketAddress& address, Duration limit, Report report);

 private:
  void on_ready(std::uint32_t events) override;
  void report(Outcome found);
  void begin(const SocketAddress& address);
  void finish(Outcome found);

  EventLoop* const loop_;
  const Report report_;
  UniqueFd fd_;
  bool is_connected_ = false;
  Timer limit_;
  Watch watch_;  // last: destroyed before the members that its handler uses
};

// Reserves a TCP port for another program, which can bind it while it is reserved.
//
// The socket is bound with SO_REUSEADDR and never listens. So the kernel does not choose the port
// for a bind to port 0, but a program that sets SO_REUSEADDR, as servers do, can bind it.
class ReservedPort {
 public:
  ReservedPort() = default;
  // `host`: a literal address, or "" for every interface, both families. Port 0: any free port.
  static Result<ReservedPort> open(const std::string& host, std::uint16_t port);

  bool is_reserved() const { return fd_.valid(); }
  std::uint16_t port() const { return port_; }

 private:
  ReservedPort(UniqueFd fd, std::uint16_t port) : fd_(std::move(fd)), port_(port) {}

  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

// The process that listens on a TCP port of this network namespace, for an error message: "pid 4711
// (python3 train.py)". Empty if it is unknown: /proc shows the descriptors of other users'
// processes only to root. Any thread.
std::string describe_port_owner(std::uint16_t port);

}  // namespace elastic::os
