#pragma once

// One connection of a StoreClient to a TCPStore server: requests out, replies in, each within
// limits.
//
// One thread at a time. A connection is "settled" when every reply that it is owed has been read;
// only then may another call use it. After an error it is not, and is of no more use.

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
  // Connects to one of `addresses` and shakes hands: VALIDATE, and a PING with `nonce` that must
  // come back. Errors: kUnavailable (refused, reset, closed), kPeerViolation (a wrong echo),
  // kResourceExhausted, and those of the limits.
  static Result<std::unique_ptr<ClientConnection>> open(
      std::span<const os::SocketAddress> addresses, std::uint32_t nonce,
      const os::WaitLimits& limits);

  // An empty buffer for the requests that the next send takes.
  std::string* new_request();
  // Sends requests that are answered. Unsettles the connection; whoever has read all the replies
  // says settle().
  Status send(const os::WaitLimits& limits);
  // Sends requests that have no reply.
  Status send_silent(const os::WaitLimits& limits);
  void settle() { is_settled_ = true; }

  // The replies, one after the other.
  Status read_code(char* code, const os::WaitLimits& limits);
  Status read_number(std::int64_t* number, const os::WaitLimits& limits);
  Status read_bytes(std::string* bytes, const os::WaitLimits& limits);
  // PING's: a wrong one is kPeerViolation.
  Status read_pong(const os::WaitLimits& limits);
  // WAIT's or BARRIER's. At the deadline the wait is taken back: should the server confirm that
  // within a short time, the connection is settled and stays usable. A release that came before the
  // confirmation counts.
  Status read_release(const os::WaitLimits& limits);

  // Appends a PING to the request.
  void append_ping(std::string* request) const;

  // Whether requests without a reply were sent, and nothing has been read since: the server may not
  // have seen them yet.
  bool has_silent_requests() const { return has_silent_requests_; }
  // No other call may use this connection, though it is settled.
  void retire() { is_retired_ = true; }
  bool is_settled() const { return is_settled_ && !is_retired_ && unread_.empty(); }
  // Settled, and the server has neither closed it nor sent what nobody asked for.
  bool is_usable() const { return is_settled() && socket_.is_quiet(); }

  const os::SocketAddress& peer() const { return socket_.peer(); }

 private:
  ClientConnection(os::StreamSocket socket, std::uint32_t nonce)
      : socket_(std::move(socket)), nonce_(nonce) {}
  Status fill(const os::WaitLimits& limits);
  Status read_exactly(std::span<char> into, const os::WaitLimits& limits);

  os::StreamSocket socket_;
  std::uint32_t nonce_;
  bool is_settled_ = true;
  bool is_retired_ = false;
  bool has_silent_requests_ = false;
  std::string request_;
  std::string_view unread_;  // what of buffer_ no reader has taken yet
  std::array<char, 16384> buffer_;
};

}  // namespace elastic::host
