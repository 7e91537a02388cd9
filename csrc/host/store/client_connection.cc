#include "host/store/client_connection.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "os/loop/clock.h"

namespace elastic::host {
namespace {

constexpr StoreLimits kLimits;

std::string quoted(std::string_view key) {
  constexpr std::size_t kShownMax = 80;
  std::string text = "'";
  text += key.substr(0, kShownMax);
  text += key.size() > kShownMax ? "...'" : "'";
  return text;
}

Status too_large(const std::string& what, std::size_t size, std::size_t limit) {
  return {StatusCode::kInvalidArgument, what + " has " + std::to_string(size) + " bytes: at most " +
                                            std::to_string(limit) + " are allowed"};
}

Status check_key(std::string_view key) {
  if (key.size() < kLimits.key_bytes_max) return {};  // one byte is reserved for the "/"
  return too_large("key " + quoted(key), key.size(), kLimits.key_bytes_max - 1);
}

Status check_value(std::string_view value) {
  if (value.size() <= kLimits.value_bytes_max) return {};
  return too_large("the value", value.size(), kLimits.value_bytes_max);
}

Status check_count(std::size_t count) {
  if (count <= kLimits.item_count_max) return {};
  return {StatusCode::kInvalidArgument, std::to_string(count) + " keys in one call: at most " +
                                            std::to_string(kLimits.item_count_max) +
                                            " are allowed"};
}

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kListHeaderBytes = 1 + kLengthBytes;

Status check_request(std::size_t size) {
  if (size <= kLimits.frame_bytes_max) return {};
  return too_large("the request", size, kLimits.frame_bytes_max);
}

// How long a server may take to confirm CANCEL_WAIT after the deadline. A call overruns its
// deadline by at most this; if the server takes longer, the next call opens a new connection.
constexpr Duration kCancelGrace = std::chrono::milliseconds(100);

// One value. With APPEND, values may grow beyond the size of one request, up to the server's
// memory.
constexpr std::uint64_t kValueBytesMax = std::uint64_t{4} << 30;

// Memory for a value is allocated as its bytes arrive, in steps that begin at this size and double.
constexpr std::size_t kFirstStepBytes = 256 << 10;

// A request buffer that grew beyond this is not kept.
constexpr std::size_t kRequestBytesKept = 64 << 10;

}  // namespace

std::string wire_key(std::string_view key) {
  std::string name;
  name.reserve(key.size() + 1);
  name += '/';
  name += key;
  return name;
}

void append_keys_request(std::string* request, wire::Opcode opcode, const StoreKeys& keys) {
  wire::append_list_header(request, opcode, keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) wire::append_bytes(request, wire_key(keys[i]));
}

std::string describe(const StoreKeys& keys) {
  constexpr std::size_t kShownMax = 4;
  if (keys.size() == 0) return "";
  std::string text = keys.size() == 1 ? "key " : "keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), kShownMax); ++i) {
    if (i > 0) text += ", ";
    text += quoted(keys[i]);
  }
  if (keys.size() > kShownMax) text += " and " + std::to_string(keys.size() - kShownMax) + " more";
  return text;
}

Status check_bounds(const StoreKeys& keys) {
  Status status = check_count(keys.size());
  std::size_t size = kListHeaderBytes;
  for (std::size_t i = 0; status.ok() && i < keys.size(); ++i) {
    status = check_key(keys[i]);
    size += kLengthBytes + 1 + keys[i].size();
  }
  return status.ok() ? check_request(size) : status;
}

Status check_bounds(std::string_view key, std::string_view value, std::string_view expected) {
  Status status = check_key(key);
  if (status.ok()) status = check_value(value);
  if (status.ok()) status = check_value(expected);
  return status;
}

Status check_bounds(StoreItems items) {
  Status status = check_count(items.size());
  std::size_t size = kListHeaderBytes;
  for (std::size_t i = 0; status.ok() && i < items.size(); ++i) {
    status = check_bounds(items[i].first, items[i].second);
    size += 2 * kLengthBytes + 1 + items[i].first.size() + items[i].second.size();
  }
  return status.ok() ? check_request(size) : status;
}

Result<std::unique_ptr<ClientConnection>> ClientConnection::open(
    std::span<const os::SocketAddress> addresses, std::uint32_t nonce,
    const os::WaitLimits& limits) {
  auto socket = os::StreamSocket::connect(addresses, limits);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<ClientConnection> connection(new ClientConnection(*std::move(socket), nonce));
  std::string* request = connection->new_request();
  wire::append_validate(request);
  connection->append_ping(request);
  Status status = connection->send(limits);
  if (status.ok()) status = connection->read_pong(limits);
  if (!status.ok())
    return status.with_context("handshake with " + connection->peer().text() + " failed");
  connection->mark_idle();
  return connection;
}

std::string* ClientConnection::new_request() {
  request_.clear();
  if (request_.capacity() > kRequestBytesKept) request_.shrink_to_fit();
  return &request_;
}

Status ClientConnection::send(const os::WaitLimits& limits) {
  is_idle_ = false;
  return note_if_broken(socket_.send(request_, limits));
}

Status ClientConnection::send_silent(const os::WaitLimits& limits) {
  Status status = send(limits);
  if (status.ok()) {
    has_silent_requests_ = true;
    mark_idle();
  }
  return status;
}

void ClientConnection::append_ping(std::string* request) const {
  wire::append_ping(request, nonce_);
}

// The call that finds the connection broken is the one that reports it.
Status ClientConnection::note_if_broken(Status status) {
  if (status.code() == StatusCode::kUnavailable) has_silent_requests_ = false;
  return status;
}

void ClientConnection::abandon() {
  is_abandoned_ = true;
  socket_.finish_sending();
}

Status ClientConnection::fill(const os::WaitLimits& limits) {
  const auto got = socket_.receive(buffer_, limits);
  if (got.status().code() == StatusCode::kDeadlineExceeded) {
    return {StatusCode::kDeadlineExceeded, "the server does not answer"};
  }
  if (!got.ok()) return note_if_broken(got.status());
  // A server handles a connection's requests in order, so it has read the earlier ones.
  has_silent_requests_ = false;
  unread_ = std::string_view(buffer_.data(), *got);
  return {};
}

Status ClientConnection::read_exactly(std::span<char> into, const os::WaitLimits& limits) {
  while (true) {
    const std::size_t taken = std::min(into.size(), unread_.size());
    std::copy_n(unread_.data(), taken, into.data());
    unread_.remove_prefix(taken);
    into = into.subspan(taken);
    if (into.empty()) return {};
    if (into.size() >= buffer_.size()) {
      const auto got = socket_.receive(into, limits);
      if (!got.ok()) return got.status();
      into = into.subspan(*got);
    } else if (Status status = fill(limits); !status.ok()) {
      return status;
    }
  }
}

Status ClientConnection::read_code(char* code, const os::WaitLimits& limits) {
  return read_exactly(std::span(code, 1), limits);
}

Status ClientConnection::read_number(std::int64_t* number, const os::WaitLimits& limits) {
  char bytes[sizeof *number];
  Status status = read_exactly(bytes, limits);
  if (status.ok()) *number = wire::load_integer<std::int64_t>(bytes);
  return status;
}

Status ClientConnection::read_bytes(std::string* bytes, const os::WaitLimits& limits) {
  std::int64_t announced = 0;
  if (Status status = read_number(&announced, limits); !status.ok()) return status;
  const auto length = static_cast<std::uint64_t>(announced);
  if (length > kValueBytesMax) {
    return {StatusCode::kPeerViolation,
            "a reply announces a value of " + std::to_string(length) + " bytes"};
  }
  bytes->clear();
  std::size_t step = kFirstStepBytes;
  while (bytes->size() < length) {
    const std::size_t have = bytes->size();
    const std::size_t more = std::min<std::size_t>(length - have, step);
    bytes->resize(have + more);
    Status status = read_exactly(std::span(bytes->data() + have, more), limits);
    if (!status.ok()) return status;
    step *= 2;
  }
  return {};
}

Status ClientConnection::read_pong(const os::WaitLimits& limits) {
  char bytes[sizeof nonce_];
  if (Status status = read_exactly(bytes, limits); !status.ok()) return status;
  if (wire::load_integer<std::uint32_t>(bytes) == nonce_) return {};
  return {StatusCode::kPeerViolation, "PING returned a different nonce: not a TCPStore server"};
}

Status ClientConnection::read_release(const os::WaitLimits& limits) {
  char code = 0;
  Status status = read_code(&code, limits);
  if (status.ok() && code != wire::kStopWaiting) {
    return {StatusCode::kPeerViolation, "the reply to WAIT has an unknown code"};
  }
  if (status.ok()) mark_idle();
  if (status.code() != StatusCode::kDeadlineExceeded) return status;

  os::WaitLimits grace = limits;
  grace.deadline = os::monotonic_now() + kCancelGrace;
  wire::append_bare_request(new_request(), wire::Opcode::kCancelWait);
  if (!send(grace).ok() || !read_code(&code, grace).ok()) return status;
  const bool was_released = code == wire::kStopWaiting;
  if (was_released && !read_code(&code, grace).ok()) return {};
  if (code != wire::kWaitCanceled) {
    return {StatusCode::kPeerViolation, "the reply to CANCEL_WAIT has an unknown code"};
  }
  mark_idle();
  return was_released ? Status() : Status(StatusCode::kDeadlineExceeded, "");
}

}  // namespace elastic::host
