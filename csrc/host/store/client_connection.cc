#include "host/store/client_connection.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/store/wire.h"
#include "os/loop/clock.h"

namespace elastic::host {
namespace {

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
  return socket_.send(request_, limits);
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

Status ClientConnection::fill(const os::WaitLimits& limits) {
  const auto got = socket_.receive(buffer_, limits);
  if (got.status().code() == StatusCode::kDeadlineExceeded) {
    return {StatusCode::kDeadlineExceeded, "the server does not answer"};
  }
  if (!got.ok()) return got.status();
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
