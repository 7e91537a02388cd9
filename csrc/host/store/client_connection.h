#pragma once

// What a StoreClient call sends and receives: its arguments within the protocol's limits, and one
// connection to the server.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/store/wire.h"
#include "elastic/status.h"
#include "os/net/stream_socket.h"

namespace elastic::host {

// ---- The arguments: keys, their names on the wire and in messages, and limits.

// A view of zero, one or many keys; the strings outlive it.
class StoreKeys {
 public:
  StoreKeys() = default;
  explicit StoreKeys(std::string_view one) : one_(one), size_(1) {}
  explicit StoreKeys(std::span<const std::string> many) : many_(many.data()), size_(many.size()) {}

  std::size_t size() const { return size_; }
  std::string_view operator[](std::size_t index) const {
    return many_ != nullptr ? std::string_view(many_[index]) : one_;
  }

 private:
  std::string_view one_;
  const std::string* many_ = nullptr;
  std::size_t size_ = 0;
};

using StoreItems = std::span<const std::pair<std::string, std::string>>;

// The name on the wire: PyTorch's client prefixes each key with "/".
std::string wire_key(std::string_view key);

// Appends a request for a list of keys: CHECK, WAIT or MULTI_GET.
void append_keys_request(std::string* request, wire::Opcode opcode, const StoreKeys& keys);

// "key 'a'", "keys 'a', 'b' and 7 more", or "" for none; long keys are shortened.
std::string describe(const StoreKeys& keys);

// kInvalidArgument for arguments over the protocol's limits. They are not sent, because a server
// would close the connection without giving a reason.
Status check_bounds(const StoreKeys& keys);
Status check_bounds(std::string_view key, std::string_view value, std::string_view expected = {});
Status check_bounds(StoreItems items);

// One connection to a TCPStore server: sends requests and reads replies, each within limits.
//
// One thread at a time. A connection is idle when every outstanding reply has been read; only then
// may another call use it. After an error it never becomes idle again.
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
  // not have read them yet. False on a connection that is known to be broken.
  bool has_silent_requests() const { return has_silent_requests_; }
  // For a call that ends before its replies although has_silent_requests(): no request may follow,
  // but another call may not use another connection before confirm() is ok.
  void abandon();
  bool is_abandoned() const { return is_abandoned_; }
  // Waits until the server has read the requests of an abandoned connection. kUnavailable: it may
  // not have read them.
  Status confirm(const os::WaitLimits& limits) { return socket_.wait_for_peer(limits); }
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
  Status note_if_broken(Status status);
  Status read_exactly(std::span<char> into, const os::WaitLimits& limits);

  os::StreamSocket socket_;
  std::uint32_t nonce_;
  bool is_idle_ = true;
  bool is_retired_ = false;
  bool is_abandoned_ = false;
  bool has_silent_requests_ = false;
  std::string request_;
  std::string_view unread_;  // the part of buffer_ that was not read yet
  std::array<char, 16384> buffer_;
};

}  // namespace elastic::host
