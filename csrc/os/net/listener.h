#pragma once

// A listening TCP socket.
//
// One thread at a time. Accepted connections are non-blocking and inherit what is set here: no
// delay of small segments, and keep-alive probes, so that a peer whose host has vanished is
// noticed.

#include <cstddef>
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
  // `peer`: where the connection comes from; may be null.
  AcceptStatus accept(UniqueFd* connection, SocketAddress* peer = nullptr);
  // From now on accept() leaves so many descriptors to the rest of the process, or a quarter of its
  // limit if that is less.
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
