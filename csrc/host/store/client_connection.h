#pragma once

// One connection of a StoreClient to a TCPStore server: sends requests and reads replies, each
// within limits.
//
// One thread at a time. A connection is idle when every outstanding reply has been read; only then
// may another call use it. After an error it never becomes idle again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "elastic/status.h"
#include "os/net/stream_socket.h"

namespace elastic::host {

class ClientConnection {
 public:
  // Connects to one of `addresses` and performs the handshake: VALIDATE, and a PING that must
  // return `nonce`. Errors: kUnavailable (refused, reset, closed), kPeerViolation (a different
  // nonce), kResourceExhausted, and the errors of the limits.
  static Result<std::unique_ptr<ClientConnection>> open(
      std::span<const os::SocketAddress> addresses, std::uint32_t nonce,
      const os::WaitLimits& limits);

  // An empty buffer for the requests of the next send.
  std::string* new_request();
  // Sends requests that have replies. The connection is busy until the caller has read all replies
  // and calls mark_idle().
  Status send(const os::WaitLimits& limits);
  // Sends requests that have no reply.
  Status send_silent(const os::WaitLimits& limits);
  void mark_idle() { is_idle_ = true; }

  // Read the replies, one after the other.
  Status read_code(char* code, const os::WaitLimits& limits);
  Status read_number(std::int64_t* number, const os::WaitLimits& limits);
  Status read_bytes(std::string* bytes, const os::WaitLimits& limits);
  // The reply to PING: a different nonce is kPeerViolation.
  Status read_pong(const os::WaitLimits& limits);
  // The reply to WAIT or BARRIER. At the deadline the wait is cancelled: if the server confirms
  // that within a short time, the connection is idle and stays usable. A release that arrives
  // before the confirmation is a success.
  Status read_release(const os::WaitLimits& limits);

  // Appends a PING to the request.
  void append_ping(std::string* request) const;

  // Whether requests without a reply were sent, and no reply has been read since: the server may
  // not have read them yet.
  bool has_silent_requests() const { return has_silent_requests_; }
  // No later call may use this connection, even if all replies were read.
  void retire() { is_retired_ = true; }
  bool is_idle() const { return is_idle_ && !is_retired_ && unread_.empty(); }
  // Idle, and the server has neither closed it nor sent unexpected bytes.
  bool is_usable() const { return is_idle() && socket_.is_quiet(); }

  const os::SocketAddress& peer() const { return socket_.peer(); }

 private:
  ClientConnection(os::StreamSocket socket, std::uint32_t nonce)
      : socket_(std::move(socket)), nonce_(nonce) {}
  Status fill(const os::WaitLimits& limits);
  Status read_exactly(std::span<char> into, const os::WaitLimits& limits);

  os::StreamSocket socket_;
  std::uint32_t nonce_;
  bool is_idle_ = true;
  bool is_retired_ = false;
  bool has_silent_requests_ = false;
  std::string request_;
  std::string_view unread_;  // the part of buffer_ that was not read yet
  std::array<char, 16384> buffer_;
};

}  // namespace elastic::host
