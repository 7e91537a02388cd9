#pragma once

// A listening TCP socket.
//
// One thread at a time. Accepted connections are non-blocking and inherit the options set here: no
// delay of small segments, and keepalive probes, so that the disappearance of a peer's host is
// detected.

#include <cstddef>
#include <cstdint>
#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/net/address.h"

namespace elastic::os {

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

}  // namespace elastic::os
