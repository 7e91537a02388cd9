#include "host/membership/session_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "os/net/address.h"
#include "os/net/tcp_connect.h"

namespace elastic::host {
namespace {

constexpr std::size_t kReceiveBytes = 16 << 10;
// A coordinator that reads nothing for so long is replaced or given up before this is full.
constexpr std::size_t kUnsentBytesMax = 4 << 20;

}  // namespace

Result<std::unique_ptr<SessionLink>> SessionLink::open(os::EventLoop* loop, os::UniqueFd fd,
                                                       Sink sink) {
  const int raw = fd.get();
  std::unique_ptr<SessionLink> link(new SessionLink(loop, std::move(fd), std::move(sink)));
  auto watch = loop->watch(raw, EPOLLIN, link.get());
  if (!watch.ok()) return watch.status();
  link->watch_ = *std::move(watch);
  return link;
}

SessionLink::SessionLink(os::EventLoop* loop, os::UniqueFd fd, Sink sink)
    : sink_(std::move(sink)),
      fd_(std::move(fd)),
      loop_(loop),
      flush_timer_(loop, [this] { flush(); }) {
  const os::SocketAddress local = os::local_end(fd_.get());
  local_address_ = local.host();
  is_loopback_ = local.is_loopback();
}

void SessionLink::close() {
  watch_.reset();
  flush_timer_.disarm();
  fd_.reset();
}

void SessionLink::lost(const Status& why) {
  close();
  sink_.on_lost(why);
}

void SessionLink::send(const session::ClientMessage& message) {
  if (!fd_.valid()) return;
  if (!std::exchange(was_hello_sent_, true)) output_.append(session::kMagic);
  session::append(&output_, message);
  if (!is_writing_) flush_timer_.arm(loop_->now());
}

void SessionLink::flush() {
  if (!fd_.valid()) return;
  flush_timer_.disarm();
  std::size_t sent = 0;
  while (sent < output_.size()) {
    const ssize_t count =
        ::send(fd_.get(), output_.data() + sent, output_.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      break;  // a broken connection shows when it is read
    }
  }
  output_.erase(0, sent);
  const bool must_wait = !output_.empty();
  if (must_wait != is_writing_) {
    is_writing_ = must_wait;
    watch_.modify(must_wait ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void SessionLink::on_ready(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  char bytes[kReceiveBytes];
  const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
  if (got > 0) {
    serve({bytes, static_cast<std::size_t>(got)});
  } else if (got == 0) {
    lost(Status(StatusCode::kUnavailable, "the coordinator closed the connection"));
  } else if (errno != EAGAIN && errno != EINTR) {
    lost(os::connection_error("the connection to the coordinator broke", errno));
  }
  if (fd_.valid() && output_.size() > kUnsentBytesMax) {
    lost(Status(StatusCode::kUnavailable, "the coordinator reads nothing"));
  }
}

void SessionLink::serve(std::string_view bytes) {
  input_.append(bytes);
  std::size_t served = 0;
  while (fd_.valid()) {
    session::ServerMessage message;
    const session::DecodeResult result =
        session::decode(std::string_view(input_).substr(served), &message);
    if (result.status == session::DecodeStatus::kNeedMore) break;
    if (result.status == session::DecodeStatus::kViolation) {
      lost(Status(StatusCode::kPeerViolation, std::string(result.error.message())));
      return;
    }
    served += result.bytes;
    sink_.on_message(message);
  }
  input_.erase(0, served);
}

}  // namespace elastic::host
