#include "host/store/store_peer.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/session/session_wire.h"

// Theory of operation. In the common case a turn is one recv into the shared buffer, some requests
// served straight from it, and one send straight from the shared replies: nothing is copied or
// allocated, and an idle connection holds no buffers. A frame that has not arrived whole is kept in
// `input_`, a reply that the socket does not take in `output_`.
//
// What a request wakes on other connections is left in their `output_` and sent when all handlers
// of the iteration have run, so that a client for whom several things become ready gets one
// segment.
//
// A client that asks and does not read is not read from while more than kUnsentPauseBytes wait for
// it; requests that had been read by then are held back in `input_`. A client that has gone is read
// to the end all the same: what it sent before it left counts.

namespace elastic::host {
namespace {

constexpr std::size_t kUnsentPauseBytes = 256 << 10;
// The shared replies keep this much between turns.
constexpr std::size_t kRepliesKeptBytes = 1 << 20;

// Short strings live in the object itself.
std::size_t heap_bytes(const std::string& buffer) {
  return buffer.capacity() > std::string().capacity() ? buffer.capacity() : 0;
}

}  // namespace

Result<std::unique_ptr<StorePeer>> StorePeer::create(StoreContext* context, os::EventLoop* loop,
                                                     os::UniqueFd fd) {
  std::unique_ptr<StorePeer> self(new StorePeer(context, std::move(fd)));
  self->interest_ = EPOLLIN;
  auto watch = loop->watch(self->fd_.get(), self->interest_, self.get());
  if (!watch.ok()) return watch.status();
  self->watch_ = std::move(*watch);
  return self;
}

StorePeer::~StorePeer() { context_.budget.give_back(charged_); }

void StorePeer::on_ready(std::uint32_t events) {
  // EPOLLHUP and EPOLLERR say that both directions are gone. A half-closed connection shows as a
  // read of nothing.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) peer_gone_ = true;
  if ((events & EPOLLOUT) != 0) flush();
  if (held_) {
    serve_held();
  } else if ((events & ~std::uint32_t{EPOLLOUT}) != 0 && !paused()) {
    receive();
  }
  finish_turn();
}

void StorePeer::settle() {
  settle_requested_ = false;
  if (held_) {
    serve_held();
  } else if (draining_ && !drained_ && !paused()) {
    receive();
  }
  finish_turn();
}

void StorePeer::drain() {
  draining_ = true;
  drained_ = false;
  request_settle();
}

void StorePeer::receive() {
  const ssize_t got = ::recv(fd_.get(), context_.received.get(), StoreContext::kReceiveBytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    drained_ = true;
    return;
  }
  if (got <= 0) {
    close();
    return;
  }
  std::string_view bytes(context_.received.get(), static_cast<std::size_t>(got));
  drained_ = bytes.size() < StoreContext::kReceiveBytes;
  if (!input_.empty()) {
    if (append(&input_, bytes)) serve_held();
    return;
  }
  bytes.remove_prefix(serve(bytes));
  if (!closed() && !bytes.empty()) append(&input_, bytes);
}

// Serves what `input_` holds.
void StorePeer::serve_held() {
  if (paused()) return;
  const std::size_t used = serve(input_);
  if (closed()) return;
  input_.erase(0, used);
  if (input_.empty()) release(&input_);
}

// Serves the whole requests at the beginning of `bytes` and says how many bytes they were.
std::size_t StorePeer::serve(std::string_view bytes) {
  std::string* const replies = &context_.replies;
  wire::Request request;
  std::size_t used = 0;
  std::uint64_t requests = 0;
  held_ = false;
  while (used < bytes.size()) {
    if (found_coordinator_ && bytes[used] == session::kMagic[0]) {
      hand_over(bytes.substr(used));
      used = bytes.size();
      break;
    }
    const wire::DecodeResult decoded = decoder_.decode(bytes.substr(used), &request);
    if (decoded.status == wire::DecodeStatus::kNeedMore) break;
    if (decoded.status == wire::DecodeStatus::kRequest && is_coordinator_check(request)) {
      found_coordinator_ = true;
      replies->push_back(wire::kReady);
    } else if (decoded.status == wire::DecodeStatus::kViolation ||
               context_.table.serve(request, this, replies, &context_.released) != nullptr) {
      flush();  // the replies to the requests before this one
      reject();
      break;
    }
    used += decoded.bytes;
    ++requests;
    if (!context_.released.empty()) release_others();
    if (unsent() + replies->size() > kUnsentPauseBytes) {
      held_ = true;
      break;
    }
  }
  context_.requests.add(requests);
  return used;
}

bool StorePeer::is_coordinator_check(const wire::Request& request) const {
  return context_.on_session != nullptr && request.opcode == wire::Opcode::kCheck &&
         request.items.size() == 1 && request.items.begin().next() == session::kReservedKey;
}

// The connection goes on as a session. A client that had not even read the reply to its CHECK, and
// cannot know that this is a coordinator, is none.
void StorePeer::hand_over(std::string_view unread) {
  flush();
  if (closed() || peer_gone_ || draining_ || unsent() > 0) {
    reject();
    return;
  }
  watch_.reset();
  context_.on_session(std::move(fd_), unread);
  close();
}

// Tells those whose waits a request has ended.
void StorePeer::release_others() {
  for (StoreTable::Waiter* waiter : context_.released) {
    auto* connection = static_cast<StorePeer*>(waiter);
    if (connection == this) {
      context_.replies.push_back(wire::kStopWaiting);  // behind its own replies of this turn
    } else {
      connection->wake();
    }
  }
  context_.released.clear();
}

void StorePeer::wake() {
  if (append(&output_, std::string_view(&wire::kStopWaiting, 1))) request_settle();
}

// Sends what there is: what was left of earlier turns, then the replies of this one.
void StorePeer::flush() {
  std::string& replies = context_.replies;
  if (!closed() && !peer_gone_) {
    if (output_.empty() && !replies.empty()) {
      const std::size_t sent = send_some(replies);
      if (sent < replies.size()) append(&output_, std::string_view(replies).substr(sent));
    } else if (!output_.empty() && append(&output_, replies)) {
      sent_ += send_some(std::string_view(output_).substr(sent_));
    }
  }
  replies.clear();
  if (replies.capacity() > kRepliesKeptBytes) std::string().swap(replies);
  if (peer_gone_ || sent_ == output_.size()) {
    release(&output_);
    sent_ = 0;
  } else if (sent_ > output_.size() / 2) {
    output_.erase(0, std::exchange(sent_, 0));
  }
}

std::size_t StorePeer::send_some(std::string_view bytes) {
  const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno != EAGAIN && errno != EINTR) peer_gone_ = true;
  return 0;
}

void StorePeer::finish_turn() {
  context_.publish();  // first, so that a client which has its reply finds it counted
  flush();
  context_.publish();
  if (closed()) return;
  if (draining_ && drained_ && !held_ && unsent() == 0) {
    close();
    return;
  }
  const std::uint32_t interest =
      (paused() ? 0u : std::uint32_t{EPOLLIN}) | (unsent() > 0 ? std::uint32_t{EPOLLOUT} : 0u);
  if (interest != interest_) watch_.modify(interest_ = interest);
  // No event tells of requests that have been read already.
  if (!paused() && (held_ || (draining_ && !drained_))) request_settle();
}

bool StorePeer::paused() const { return !peer_gone_ && unsent() > kUnsentPauseBytes; }

void StorePeer::reject() {
  if (closed()) return;
  context_.connections_rejected.add(1);
  close();
}

void StorePeer::close() {
  cancel();
  watch_.reset();
  fd_.reset();
  request_settle();
}

void StorePeer::request_settle() {
  if (std::exchange(settle_requested_, true)) return;
  context_.unsettled.push_back(this);
  if (context_.unsettled.size() == 1) context_.on_unsettled();
}

// Appends to one of the two buffers, if the budget and the connection's own limit have room for it.
// False: they have not, and the connection is closed.
bool StorePeer::append(std::string* buffer, std::string_view bytes) {
  const std::size_t size = buffer->size() + bytes.size();
  const bool too_much = buffer == &output_ && size - sent_ > context_.limits.output_bytes_max;
  if (size > buffer->capacity() && !too_much) {
    const std::size_t before = heap_bytes(*buffer);
    const std::size_t wanted = std::max(size, 2 * buffer->capacity());
    if (context_.budget.take(wanted - before)) {
      charged_ += wanted - before;
      buffer->reserve(wanted);
    }
  }
  if (too_much || size > buffer->capacity()) {
    reject();
    return false;
  }
  buffer->append(bytes);
  return true;
}

void StorePeer::release(std::string* buffer) {
  buffer->clear();
  if (heap_bytes(*buffer) == 0) return;
  std::string().swap(*buffer);
  const std::size_t held = heap_bytes(input_) + heap_bytes(output_);
  context_.budget.give_back(charged_ - held);
  charged_ = held;
}

}  // namespace elastic::host
