#include "host/coordinator/session_peer.h"

#include <algorithm>
#include <utility>

#include "host/base/admission.h"

// Theory of operation. The messages that were read are passed to the service one by one. Everything
// that they cause to be sent, to this session or to others, is collected in the streams and sent
// once, when all handlers of the iteration have returned. So a heartbeat costs one recv and one
// send, and no allocation: a small buffer is kept.

namespace elastic::host {
namespace {

// A larger reused message buffer is freed.
constexpr std::size_t kFrameKeptBytes = 64 << 10;
// The longest frame of a client that has sent no hello; the longest hello of ours fits.
constexpr std::size_t kHelloBytesMax = 64 << 10;

}  // namespace

SessionContext::SessionContext(os::EventLoop* event_loop, Duration hello, std::size_t output_max,
                               std::size_t total_max, std::function<void()> on_pending)
    : loop(*event_loop),
      hello_timeout(hello),
      budget(total_max),
      streams(event_loop, &budget, {.output_bytes_max = output_max, .kept_bytes = kKeptBytes},
              std::move(on_pending)) {}

Result<std::unique_ptr<SessionPeer>> SessionPeer::create(SessionContext* context,
                                                         os::DetachedStream connection) {
  std::unique_ptr<SessionPeer> self(new SessionPeer(context));
  os::Stream& stream = self->stream_;
  const bool is_plain = connection.unread.starts_with(session::kMagic[0]);
  if (context->tokens != nullptr && !is_plain) {
    auto tls = context->tokens->accept();
    if (!tls.ok()) return tls.status();
    connection.tls = *std::move(tls);
  }
  if (Status started = stream.start(std::move(connection)); !started.ok()) return started;
  self->local_ = stream.local();
  self->remote_ = stream.remote();
  stream.set_keep_alive(kKeepAliveInterval);
  stream.set_deadline(context->loop.now() + context->hello_timeout);
  self->pending_ =
      context->pending->add(self->remote_.host(), [peer = self.get()] { peer->close(); });
  if (context->tokens != nullptr && is_plain) {
    context->on_refusal(self.get(), "it has no token");
    self->finish(Status(StatusCode::kFailedPrecondition,
                        "the coordinator needs a token, and this node has none: set --token-file "
                        "(or ELASTIC_TOKEN_FILE) to a file with the token of the job"));
  }
  return self;
}

void SessionPeer::on_secured() {
  identity_ = read_identity(stream_.tls()->identity());
  context_.on_secured(this);
}

void SessionPeer::on_end(os::Stream::End why, int) {
  pending_.reset();
  if (why != os::Stream::End::kTlsFailed) return;
  const os::TlsSession& tls = *stream_.tls();
  const bool is_unknown = tls.error() == os::TlsSession::Error::kUnknownIdentity;
  context_.on_refusal(this, is_unknown ? "its token is not valid here" : tls.error_text());
}

bool SessionPeer::is_from_this_host() const {
  // A peer with the same address at both ends is on this host.
  return remote_.is_loopback() || remote_.host() == local_.host();
}

// Handles the complete messages at the beginning of `bytes` and returns their size.
std::size_t SessionPeer::on_bytes(std::string_view bytes) {
  std::size_t used = 0;
  if (!has_magic_ && !take_magic(bytes, &used)) return used;
  while (used < bytes.size() && !closed() && !is_finishing_) {
    const session::DecodeResult decoded =
        session::decode(bytes.substr(used), &context_.message, peer_version);
    if (pending_ != nullptr && decoded.bytes > kHelloBytesMax) {
      finish(Status(StatusCode::kPeerViolation, "the first message of a session must be a hello"));
      break;
    }
    if (decoded.status == session::DecodeStatus::kNeedMore) return used;
    used += decoded.bytes;
    Status error = decoded.error;
    if (decoded.status == session::DecodeStatus::kMessage) {
      error = context_.on_message(this, context_.message);
    }
    if (!error.ok()) finish(error);
  }
  return closed() || is_finishing_ ? bytes.size() : used;
}

bool SessionPeer::take_magic(std::string_view bytes, std::size_t* used) {
  const std::size_t size = std::min(bytes.size(), session::kMagic.size());
  if (bytes.substr(0, size) != session::kMagic.substr(0, size)) {
    finish(
        Status(StatusCode::kPeerViolation, "the connection is not a session: the magic is wrong"));
    *used = bytes.size();
    return false;
  }
  has_magic_ = size == session::kMagic.size();
  if (has_magic_) *used = size;
  return has_magic_;
}

void SessionPeer::send(const session::ServerMessage& message) {
  if (closed() || is_finishing_) return;
  on_sending();
  std::string& frame = context_.frame;
  frame.clear();
  session::append(&frame, message);
  stream_.write(frame);
  if (frame.capacity() > kFrameKeptBytes) std::string().swap(frame);
}

void SessionPeer::send_shared(std::shared_ptr<const std::string> frame) {
  if (closed() || is_finishing_) return;
  shared_.push_back(std::move(frame));
  stream_.send_soon();
}

std::shared_ptr<const std::string> SessionPeer::shared_frame(
    const session::ServerMessage& message) {
  auto frame = std::make_shared<std::string>();
  session::append(frame.get(), message);
  return frame;
}

void SessionPeer::on_sending() {
  if (shared_.empty()) return;
  for (const auto& frame : std::exchange(shared_, {})) stream_.write(*frame);
}

void SessionPeer::finish(const Status& error) { end(rdzv::Refused{node, error}); }

void SessionPeer::end(const session::ServerMessage& last) {
  if (closed() || is_finishing_) return;
  send(last);
  is_finishing_ = true;
  stream_.finish(context_.loop.now() + kFinishTimeout);
}

}  // namespace elastic::host
