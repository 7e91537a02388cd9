#include "host/coordinator/session_peer.h"

#include <utility>

// Theory of operation. The messages that were read are passed to the service one by one. Everything
// that they cause to be sent, to this session or to others, is collected in the streams and sent
// once, when all handlers of the iteration have returned. So a heartbeat costs one recv and one
// send, and no allocation: a small buffer is kept.

namespace elastic::host {
namespace {

// A larger reused message buffer is freed.
constexpr std::size_t kFrameKeptBytes = 64 << 10;

}  // namespace

Result<std::unique_ptr<SessionPeer>> SessionPeer::create(SessionContext* context,
                                                         os::DetachedStream connection) {
  std::unique_ptr<SessionPeer> self(new SessionPeer(context));
  const Status started =
      self->accept(std::move(connection), {.greeting_timeout = context->hello_timeout,
                                           .pending = context->pending,
                                           .tokens = context->tokens.get()});
  if (!started.ok()) return started;
  return self;
}

void SessionPeer::on_secured() {
  identity_ = proved_identity();
  context_.on_secured(this);
}

void SessionPeer::reject(const Status& why) {
  if (why.code() == StatusCode::kFailedPrecondition) context_.on_refusal(this, "it has no token");
  if (has_joined) context_.on_fault(this, why, false);
  refuse(why);
}

void SessionPeer::refuse(const Status& why) {
  if (has_joined) {
    close();
  } else {
    finish(why);
  }
}

void SessionPeer::on_lost(const Status& why) {
  const bool is_refusal = why.code() == StatusCode::kFailedPrecondition;
  if (is_refusal && context_.on_refusal) context_.on_refusal(this, why.message());
}

bool SessionPeer::is_from_this_host() const {
  // A peer with the same address at both ends is on this host.
  return remote().is_loopback() || remote().host() == local().host();
}

void SessionPeer::on_frame(std::string_view frame) {
  const session::DecodeResult decoded = session::decode(frame, &context_.message, peer_version);
  if (decoded.status == session::DecodeStatus::kMessage) {
    const Status error = context_.on_message(this, context_.message);
    if (!error.ok()) refuse(error);
  } else if (!decoded.error.ok()) {
    const bool is_ignored = decoded.status == session::DecodeStatus::kSkipped;
    if (context_.on_fault) context_.on_fault(this, decoded.error, is_ignored);
    if (!is_ignored) refuse(decoded.error);
  }
}

void SessionPeer::send(const session::ServerMessage& message) {
  if (!is_open()) return;
  on_sending();
  std::string& frame = context_.frame;
  frame.clear();
  session::append(&frame, message);
  write(frame);
  if (frame.capacity() > kFrameKeptBytes) std::string().swap(frame);
}

void SessionPeer::send_shared(std::shared_ptr<const std::string> frame) {
  if (!is_open()) return;
  shared_.push_back(std::move(frame));
  stream().send_soon();
}

std::shared_ptr<const std::string> SessionPeer::shared_frame(
    const session::ServerMessage& message) {
  auto frame = std::make_shared<std::string>();
  session::append(frame.get(), message);
  return frame;
}

void SessionPeer::on_sending() {
  if (shared_.empty()) return;
  for (const auto& frame : std::exchange(shared_, {})) write(*frame);
}

void SessionPeer::finish(const Status& error) { end(rdzv::Refused{node, error}); }

void SessionPeer::end(const session::ServerMessage& last) {
  FramedPeer::finish(*shared_frame(last));
}

}  // namespace elastic::host
