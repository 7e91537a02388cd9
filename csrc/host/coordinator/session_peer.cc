#include "host/coordinator/session_peer.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

// Theory of operation. A turn is one recv into the shared buffer, and the messages in it are handed
// to the service one by one. What is to be sent, to this session or by its messages to others, is
// collected in each session's `output_` and sent once, when all handlers of the iteration have run.
// A beat so costs one recv and one send, and no allocation: a small buffer is kept.

namespace elastic::host {
namespace {

// A buffer of this size is kept while nothing waits in it.
constexpr std::size_t kKeptBytes = 512;
// How long a client that was refused may take to read that and go.
constexpr Duration kFinishTimeout = std::chrono::seconds(2);

// A host that has vanished is noticed by probes after this time, also when nothing is sent to it.
constexpr int kKeepAliveIdleSeconds = 5;
constexpr int kKeepAliveIntervalSeconds = 5;

void set_option(int fd, int option, int value) {
  // Each of them improves a session that works without it, so a kernel that refuses is no error.
  [[maybe_unused]] const int result = ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
}

}  // namespace

SessionPeer::SessionPeer(SessionContext* context, os::EventLoop* loop, os::UniqueFd fd,
                         std::string_view unread)
    : context_(*context),
      loop_(*loop),
      fd_(std::move(fd)),
      local_(os::local_end(fd_.get())),
      remote_(os::peer_end(fd_.get())),
      input_(unread),
      patience_(loop, [this] { close(); }) {}

Result<std::unique_ptr<SessionPeer>> SessionPeer::create(SessionContext* context,
                                                         os::EventLoop* loop, os::UniqueFd fd,
                                                         std::string_view unread) {
  std::unique_ptr<SessionPeer> self(new SessionPeer(context, loop, std::move(fd), unread));
  self->interest_ = EPOLLIN;
  auto watch = loop->watch(self->fd_.get(), self->interest_, self.get());
  if (!watch.ok()) return watch.status();
  self->watch_ = std::move(*watch);
  set_option(self->fd_.get(), TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set_option(self->fd_.get(), TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  self->patience_.arm(loop->now() + context->hello_timeout);
  if (!self->charge()) {
    return Status(StatusCode::kResourceExhausted, "the sessions' buffers are full");
  }
  self->request_settle();
  return self;
}

SessionPeer::~SessionPeer() { context_.budget.give_back(charged_); }

void SessionPeer::set_user_timeout(Duration timeout) {
  if (closed()) return;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  set_option(fd_.get(), TCP_USER_TIMEOUT,
             static_cast<int>(std::clamp<std::int64_t>(ms, 1000, 1 << 30)));
}

bool SessionPeer::is_from_this_host() const {
  // Whoever reaches an address of this host from that very address is on this host.
  return remote_.is_loopback() || remote_.host() == local_.host();
}

void SessionPeer::on_ready(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  // An error or the end of the connection shows as a read, after all that came before it.
  if ((events & ~std::uint32_t{EPOLLOUT}) != 0 && !closed()) receive();
  finish_turn();
}

void SessionPeer::settle() {
  settle_requested_ = false;
  if (!input_.empty()) serve_input();
  flush();
  finish_turn();
}

void SessionPeer::receive() {
  const ssize_t got = ::recv(fd_.get(), context_.received.get(), SessionContext::kReceiveBytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    close();
    return;
  }
  const std::string_view bytes(context_.received.get(), static_cast<std::size_t>(got));
  if (finishing_) return;
  if (!input_.empty()) {
    input_.append(bytes);
    serve_input();
    return;
  }
  const std::size_t used = serve(bytes);
  if (!closed()) input_.assign(bytes.substr(used));
}

void SessionPeer::serve_input() {
  const std::size_t used = serve(input_);
  input_.erase(0, used);
  if (input_.empty() && input_.capacity() > kKeptBytes) std::string().swap(input_);
}

// Serves the whole messages at the beginning of `bytes` and says how many bytes they were.
std::size_t SessionPeer::serve(std::string_view bytes) {
  std::size_t used = 0;
  if (!has_magic_ && !take_magic(bytes, &used)) return used;
  while (used < bytes.size() && !closed() && !finishing_) {
    const session::DecodeResult decoded = session::decode(bytes.substr(used), &context_.message);
    if (decoded.status == session::DecodeStatus::kNeedMore) return used;
    Status error = decoded.error;
    if (error.ok()) {
      used += decoded.bytes;
      error = context_.on_message(this, context_.message);
    }
    if (!error.ok()) finish(error);
  }
  return bytes.size();  // nothing of a session that has ended is served any more
}

bool SessionPeer::take_magic(std::string_view bytes, std::size_t* used) {
  const std::size_t size = std::min(bytes.size(), session::kMagic.size());
  if (bytes.substr(0, size) != session::kMagic.substr(0, size)) {
    finish(Status(StatusCode::kPeerViolation, "what follows the store's part is no session"));
    *used = bytes.size();
    return false;
  }
  has_magic_ = size == session::kMagic.size();
  if (has_magic_) *used = size;
  return has_magic_;
}

void SessionPeer::send(const session::ServerMessage& message) {
  if (closed() || finishing_) return;
  session::append(&output_, message);
  if (output_.size() - sent_ > context_.output_bytes_max || !charge()) {
    close();
  } else {
    request_settle();
  }
}

void SessionPeer::finish(const Status& error) {
  if (closed() || finishing_) return;
  send(rdzv::Refused{node, error});
  finishing_ = true;
  patience_.arm(loop_.now() + kFinishTimeout);
  request_settle();
}

void SessionPeer::flush() {
  if (closed() || !has_unsent()) return;
  const ssize_t sent =
      ::send(fd_.get(), output_.data() + sent_, output_.size() - sent_, MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    // What the client said before it broke is still to be read; that read closes the session.
    sent_ = output_.size();
  } else if (sent > 0) {
    sent_ += static_cast<std::size_t>(sent);
  }
  if (sent_ == output_.size()) {
    sent_ = 0;
    output_.clear();
    if (output_.capacity() > kKeptBytes) std::string().swap(output_);
    if (finishing_) ::shutdown(fd_.get(), SHUT_WR);
  } else if (sent_ > output_.size() / 2) {
    output_.erase(0, std::exchange(sent_, 0));
  }
}

void SessionPeer::finish_turn() {
  if (closed()) return;
  if (!charge()) {
    close();
    return;
  }
  const std::uint32_t interest = EPOLLIN | (has_unsent() ? std::uint32_t{EPOLLOUT} : 0u);
  const bool will_settle = settle_requested_;  // it sends then, and looks again
  if (interest != interest_ && !will_settle) watch_.modify(interest_ = interest);
}

void SessionPeer::close() {
  if (closed()) return;
  patience_.disarm();
  watch_.reset();
  fd_.reset();
  request_settle();
}

void SessionPeer::request_settle() {
  if (std::exchange(settle_requested_, true)) return;
  context_.unsettled.push_back(this);
  if (context_.unsettled.size() == 1) context_.on_unsettled();
}

// Brings what was taken from the budget to what waits here. False: there is no room for it.
bool SessionPeer::charge() {
  const std::size_t waiting = input_.size() + output_.size();
  if (!context_.budget.exchange(charged_, waiting)) return false;
  charged_ = waiting;
  return true;
}

}  // namespace elastic::host
