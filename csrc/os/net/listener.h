#pragma once

// A listening TCP socket.
//
// One thread at a time. Accepted connections are non-blocking and inherit what is set here: no
// delay of small segments, and keep-alive probes, so that a peer whose host has vanished is
// noticed.

#include <cstdint>
#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/net/address.h"

namespace elastic::os {

class Listener {
 public:
  // `host`: a literal address (bound exactly: "::" is IPv6 alone), a name (its first address;
  // blocks in the resolver), or "" for every interface, both families. Port 0: a free one. Errors:
  // kInvalidArgument (no address of this machine, or a name that does not resolve), kUnavailable
  // (port taken; the message names who has it, where that can be found out), kResourceExhausted.
  static Result<Listener> open(const std::string& host, std::uint16_t port);

  // What open() would probably say now, but for the one who has the port: that costs much more.
  static Status check(const std::string& host, std::uint16_t port);

  enum class AcceptStatus : std::uint8_t {
    kAccepted,
    kEmpty,      // nobody is waiting
    kGone,       // the one who was waiting has gone; there may be others
    kExhausted,  // no descriptor or memory for it: it stays in the queue; stop asking for a while
  };
  AcceptStatus accept(UniqueFd* connection);

  int fd() const { return fd_.get(); }
  const SocketAddress& address() const { return address_; }  // as bound, with the real port
  void close() { fd_.reset(); }

 private:
  Listener(UniqueFd fd, const SocketAddress& address) : fd_(std::move(fd)), address_(address) {}
  UniqueFd fd_;
  SocketAddress address_;
};

}  // namespace elastic::os
