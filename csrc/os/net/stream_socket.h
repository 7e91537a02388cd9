#pragma once

// The client's end of a TCP connection; every operation has a deadline.
//
// One thread at a time. The socket is non-blocking: a call waits only in poll(2), so that its
// limits (os/loop/wait.h) hold for each byte. No SIGPIPE is raised.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/wait.h"
#include "os/net/address.h"

namespace elastic::os {

class StreamSocket {
 public:
  // Connects to the first of `addresses` that accepts. After a quarter of a second without a
  // result the next address is tried in parallel. Errors: kUnavailable (of the address that failed
  // last), kResourceExhausted (descriptors, memory), and the errors of WaitLimits.
  static Result<StreamSocket> connect(std::span<const SocketAddress> addresses,
                                      const WaitLimits& limits);

  // Sends all of it. kUnavailable: the connection is broken; some of it may have been sent.
  Status send(std::string_view bytes, const WaitLimits& limits);
  // Waits for at least one byte and reads what is there, at most into.size(). kUnavailable: the
  // connection is broken or the peer has closed it.
  Result<std::size_t> receive(std::span<char> into, const WaitLimits& limits);
  // Sends the end of the stream: nothing is sent after it.
  void finish_sending();
  // After finish_sending(): waits until the peer has sent bytes or its own end, which it does when
  // it has read what was sent. kUnavailable: the connection broke before.
  Status wait_for_peer(const WaitLimits& limits);
  // True while the connection is open and no unexpected bytes have arrived.
  bool is_quiet() const;

  const SocketAddress& peer() const { return peer_; }

 private:
  StreamSocket(UniqueFd fd, const SocketAddress& peer) : fd_(std::move(fd)), peer_(peer) {}
  UniqueFd fd_;
  SocketAddress peer_;
};

}  // namespace elastic::os
