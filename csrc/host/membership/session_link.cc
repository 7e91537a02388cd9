#include "host/membership/session_link.h"

#include <utility>

#include "os/net/tcp_connect.h"

namespace elastic::host {
namespace {

Status end_status(os::Stream::End why, int error) {
  switch (why) {
    case os::Stream::End::kBroken:
      return os::connection_error("the connection to the coordinator broke", error);
    case os::Stream::End::kOutputLimit:
    case os::Stream::End::kMemoryLimit:
      return {StatusCode::kUnavailable, "the coordinator does not read"};
    default: return {StatusCode::kUnavailable, "the coordinator closed the connection"};
  }
}

}  // namespace

Result<std::unique_ptr<SessionLink>> SessionLink::open(os::StreamGroup* group,
                                                       os::DetachedStream connection, Sink sink) {
  std::unique_ptr<SessionLink> link(new SessionLink(group, std::move(sink)));
  if (Status status = link->stream_.start(std::move(connection)); !status.ok()) return status;
  const os::SocketAddress local = link->stream_.local();
  link->local_address_ = local.host();
  link->is_loopback_ = local.is_loopback();
  return link;
}

void SessionLink::send(const session::ClientMessage& message) {
  std::string bytes;
  if (!std::exchange(was_hello_sent_, true)) bytes.append(session::kMagic);
  session::append(&bytes, message);
  stream_.write(bytes);
}

std::size_t SessionLink::on_bytes(std::string_view bytes) {
  std::size_t used = 0;
  while (stream_.is_open()) {
    session::ServerMessage message;
    const session::DecodeResult result =
        session::decode(bytes.substr(used), &message, peer_version_);
    if (result.status == session::DecodeStatus::kNeedMore) break;
    if (result.status == session::DecodeStatus::kViolation) {
      close();
      sink_.on_lost(Status(StatusCode::kPeerViolation, std::string(result.error.message())));
      break;
    }
    used += result.bytes;
    if (result.status == session::DecodeStatus::kSkipped) continue;
    if (const auto* hello = std::get_if<session::ServerHello>(&message)) {
      peer_version_ = hello->version;
    }
    sink_.on_message(message);
  }
  return used;
}

void SessionLink::on_end(os::Stream::End why, int error) { sink_.on_lost(end_status(why, error)); }

}  // namespace elastic::host
