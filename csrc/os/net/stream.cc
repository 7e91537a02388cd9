#include "os/net/stream.h"

#include <linux/tcp.h>  // netinet/tcp.h has not all of tcp_info
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/check.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

// Theory of operation. In the common case a turn is one recv into the group's buffer, which the
// handler consumes in place, and one send directly from the group's turn output: nothing is copied
// or allocated. An incomplete message is kept in `input`, and bytes that the socket did not accept
// in `output`; both buffers exist only while they are needed.
//
// Bytes that are written outside of a turn, or to other streams, are queued in `output` and sent
// when all handlers of the iteration have returned, in one segment.
//
// While more than `pause_bytes` are unsent, the stream is not read, so that a peer that does not
// read cannot fill the memory; messages that were already received are kept in `input`. After the
// peer has closed, everything that it sent before is still read and handled.
//
// With TLS, received bytes are decrypted into the group's buffer before the handler sees them, and
// bytes are encrypted when the socket accepts them: `output` holds plain bytes, and the session
// holds at most kEncryptedBytesMax that the socket did not accept. Until the handshake is complete,
// nothing is passed to the handler, and written bytes stay in `output`.

namespace elastic::os {
namespace {

// The turn output keeps this capacity between turns.
constexpr std::size_t kTurnOutputKeptBytes = 1 << 20;
// Plain bytes that are encrypted before the socket has accepted the result.
constexpr std::size_t kEncryptedBytesMax = 64 << 10;
// The buffer of encrypted bytes keeps this capacity.
constexpr std::size_t kRecordsKeptBytes = 1 << 10;

// Short strings are stored in the object itself.
std::size_t heap_bytes(const std::string& buffer) {
  return buffer.capacity() > std::string().capacity() ? buffer.capacity() : 0;
}

void set_tcp_option(int fd, int option, std::int64_t value) {
  set_option(fd, IPPROTO_TCP, option,
             static_cast<int>(std::clamp<std::int64_t>(value, 1, 1 << 30)));
}

}  // namespace

StreamGroup::StreamGroup(EventLoop* loop, MemoryBudget* budget, const StreamLimits& limits,
                         std::function<void()> on_pending)
    : loop_(*loop),
      budget_(*budget),
      limits_(limits),
      received_(std::make_unique<char[]>(kReceiveBytes)),
      processing_timer_(loop, on_pending ? std::move(on_pending)
                                         : std::function<void()>([this] { process_pending(); })) {}

void StreamGroup::process(std::size_t senders_max) {
  ELASTIC_CHECK(processing_.empty());
  processing_.swap(pending_);
  std::size_t senders = 0;
  for (std::size_t i = 0; i < processing_.size(); ++i) {
    if (processing_[i] == nullptr) continue;
    if (processing_[i]->only_sends() && senders++ >= senders_max) continue;
    std::exchange(processing_[i], nullptr)->process_pending();
  }
  std::erase(processing_, nullptr);
  if (!processing_.empty()) processing_timer_.arm(loop_.now());
  // Those that have waited come first.
  processing_.insert(processing_.end(), pending_.begin(), pending_.end());
  pending_.swap(processing_);
  processing_.clear();
}

void StreamGroup::abandon() {
  pending_.clear();
  std::fill(processing_.begin(), processing_.end(), nullptr);
  processing_timer_.disarm();
}

void StreamGroup::request_processing(Stream* stream) {
  pending_.push_back(stream);
  if (pending_.size() == 1) processing_timer_.arm(loop_.now());
}

void StreamGroup::forget(const Stream* stream) {
  std::erase(pending_, stream);
  std::replace(processing_.begin(), processing_.end(), const_cast<Stream*>(stream),
               static_cast<Stream*>(nullptr));
}

Stream::~Stream() {
  ELASTIC_DEBUG_CHECK(group_.turn_ != this && !is_ending_);  // only on_closed() may destroy it
  group_.budget_.give_back(records_charged_ + tls_charged_);
  if (is_processing_requested_) group_.forget(this);
  free_buffers();
}

Status Stream::start(DetachedStream connection) {
  fd_ = std::move(connection.fd);
  auto watch = group_.loop_.watch(fd_.get(), EPOLLIN, this);
  if (!watch.ok()) {
    fd_.reset();
    return watch.status();
  }
  watch_ = *std::move(watch);
  tls_ = std::move(connection.tls);
  const bool has_room = charge_tls();
  if (has_room && connection.unread.empty()) return {};
  is_held_ = true;
  if (has_room && keep(&Buffers::input, connection.unread)) {
    request_processing();
    return {};
  }
  watch_.reset();
  fd_.reset();
  return {StatusCode::kResourceExhausted, "the buffers of the connections are full"};
}

DetachedStream Stream::detach(std::string_view unread) {
  DetachedStream connection{.fd = {}, .unread = std::string(unread)};
  watch_.reset();
  connection.fd = std::move(fd_);
  connection.tls = std::move(tls_);
  group_.budget_.give_back(std::exchange(records_charged_, 0) + std::exchange(tls_charged_, 0));
  close();
  return connection;
}

void Stream::secure(std::unique_ptr<TlsSession> tls) {
  ELASTIC_CHECK(is_open() && tls_ == nullptr && num_unsent() == 0);
  tls_ = std::move(tls);
  if (!charge_tls()) return end(End::kMemoryLimit, 0);
  request_processing();  // sends the client's first message
}

// The memory of the session itself. False: the budget is exhausted.
bool Stream::charge_tls() {
  if (tls_ == nullptr) return true;
  const std::size_t wanted =
      tls_->is_established() ? TlsSession::kEstablishedBytes : TlsSession::kHandshakeBytes;
  if (!group_.budget_.exchange(tls_charged_, wanted)) return false;
  tls_charged_ = wanted;
  return true;
}

// Bytes wait for the socket. Before the handshake is complete, written bytes wait for the peer.
bool Stream::can_send() const {
  if (tls_ == nullptr) return num_queued() > 0;
  return !tls_->output().empty() || (tls_->is_established() && num_queued() > 0);
}

void Stream::on_ready(std::uint32_t events) {
  // EPOLLHUP and EPOLLERR: both directions are closed. A half-closed connection is readable, and
  // recv() returns 0.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) is_peer_gone_ = true;
  group_.turn_ = this;
  if ((events & EPOLLOUT) != 0) flush();
  if (is_held_) {
    serve_input();
  } else if ((events & ~std::uint32_t{EPOLLOUT}) != 0 && !paused()) {
    receive();
  }
  end_turn();
}

void Stream::process_pending() {
  if (is_open()) handler_.on_sending();  // what it writes requests no further processing
  is_processing_requested_ = false;
  if (!is_open()) {
    handler_.on_closed();  // may have destroyed the stream
    return;
  }
  group_.turn_ = this;
  if (is_held_) {
    serve_input();
  } else if (is_draining_ && !is_drained_ && !paused()) {
    receive();
  }
  end_turn();
}

void Stream::receive() {
  char* const into = group_.received_.get();
  const ssize_t got = ::recv(fd_.get(), into, StreamGroup::kReceiveBytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    is_drained_ = true;
    return;
  }
  if (got <= 0) {
    end(got == 0 ? End::kClosedByPeer : End::kBroken, got == 0 ? 0 : errno);
    return;
  }
  std::string_view bytes(into, static_cast<std::size_t>(got));
  is_drained_ = bytes.size() < StreamGroup::kReceiveBytes;
  if (is_finishing_) return;
  if (tls_ != nullptr && !decrypt(&bytes)) return;
  if (buffers_ != nullptr && !buffers_->input.empty()) {
    if (keep(&Buffers::input, bytes)) serve_input();
    return;
  }
  bytes.remove_prefix(offer(bytes));
  if (is_open() && !is_finishing_ && !bytes.empty()) keep(&Buffers::input, bytes);
}

void Stream::serve_input() {
  if (paused()) return;
  is_held_ = false;
  if (buffers_ == nullptr) return;
  const std::size_t used = offer(buffers_->input);
  if (!is_open()) return;
  buffers_->input.erase(0, is_finishing_ ? std::string::npos : used);
  if (buffers_->input.empty()) release(&Buffers::input);
}

// Replaces received bytes by the plain ones. False: there are none for the handler.
bool Stream::decrypt(std::string_view* bytes) {
  const bool was_established = tls_->is_established();
  group_.decrypted_.clear();
  if (!tls_->receive(*bytes, &group_.decrypted_)) {
    send_records();  // the alert
    end(End::kTlsFailed, 0);
    return false;
  }
  if (!was_established) {
    send_records();
    if (!tls_->is_established()) return false;
    charge_tls();  // less than during the handshake
    handler_.on_secured();
  }
  if (!charge_records()) return false;
  *bytes = group_.decrypted_;
  return is_open() && !is_finishing_ && !bytes->empty();
}

std::size_t Stream::offer(std::string_view bytes) {
  const std::size_t used = handler_.on_bytes(bytes);
  is_held_ = used < bytes.size() && should_pause();
  return used;
}

void Stream::end_turn() {
  // Written bytes are sent at the end of the iteration, because more may be added.
  if (!is_processing_requested_ || !group_.turn_output_.empty()) flush();
  group_.turn_ = nullptr;
  group_.turn_output_.clear();
  if (group_.turn_output_.capacity() > kTurnOutputKeptBytes) {
    std::string().swap(group_.turn_output_);
  }
  handler_.on_turn_end();
  if (!is_open()) return;
  if (is_draining_ && is_drained_ && !is_held_ && num_unsent() == 0) {
    close();
    return;
  }
  // No event reports bytes that were received already.
  if (!paused() && (is_held_ || (is_draining_ && !is_drained_))) request_processing();
  if (is_processing_requested_) return;  // process_pending() calls this again
  const bool must_read = !paused();
  const bool must_write = can_send();
  if (must_read == is_reading_ && must_write == is_writing_) return;
  is_reading_ = must_read;
  is_writing_ = must_write;
  watch_.modify((must_read ? std::uint32_t{EPOLLIN} : 0u) |
                (must_write ? std::uint32_t{EPOLLOUT} : 0u));
}

bool Stream::write(std::string_view bytes) {
  if (!is_open() || is_finishing_) return false;
  if (is_peer_gone_) return true;  // the end is reported after all received bytes were handled
  if (!keep(&Buffers::output, bytes)) return false;
  request_processing();
  return true;
}

// Sends the rest of earlier turns, then the output of this turn.
void Stream::flush() {
  std::string none;
  std::string& turn = group_.turn_ == this ? group_.turn_output_ : none;
  if (is_open() && !is_peer_gone_) {
    if (tls_ != nullptr) send_records();
    if (num_queued() == 0 && !turn.empty()) {
      const std::size_t sent = send_some(turn);
      if (sent < turn.size()) keep(&Buffers::output, std::string_view(turn).substr(sent));
    } else if (num_queued() > 0 && (turn.empty() || keep(&Buffers::output, turn))) {
      buffers_->sent += send_some(std::string_view(buffers_->output).substr(buffers_->sent));
    }
  }
  turn.clear();
  if (buffers_ != nullptr && (is_peer_gone_ || num_unsent() == 0)) {
    buffers_->sent = 0;
    release(&Buffers::output);
  } else if (buffers_ != nullptr && buffers_->sent > buffers_->output.size() / 2) {
    buffers_->output.erase(0, std::exchange(buffers_->sent, 0));
  }
  if (is_finishing_ && is_open() && num_unsent() == 0) ::shutdown(fd_.get(), SHUT_WR);
}

std::size_t Stream::send_some(std::string_view bytes) {
  if (tls_ != nullptr) return encrypt_some(bytes);
  const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno != EAGAIN && errno != EINTR) is_peer_gone_ = true;
  return 0;
}

// Returns how many bytes were encrypted, although the socket may not have accepted all of them.
std::size_t Stream::encrypt_some(std::string_view bytes) {
  std::size_t used = 0;
  while (tls_->is_established() && tls_->output().empty() && used < bytes.size()) {
    const std::string_view part = bytes.substr(used, kEncryptedBytesMax);
    if (!tls_->send(part)) {
      is_peer_gone_ = true;
      break;
    }
    used += part.size();
    send_records();
  }
  charge_records();
  return used;
}

// The session answers some messages of the peer by itself, so its output is limited and charged
// like written bytes. False: the stream has ended.
bool Stream::charge_records() {
  if (tls_ == nullptr || !is_open()) return is_open();
  const std::size_t held = tls_->output().empty() ? 0 : heap_bytes(tls_->output());
  if (held > records_charged_) {
    if (num_unsent() > group_.limits_.output_bytes_max) {
      end(End::kOutputLimit, 0);
      return false;
    }
    if (!group_.budget_.take(held - records_charged_)) {
      end(End::kMemoryLimit, 0);
      return false;
    }
  } else {
    group_.budget_.give_back(records_charged_ - held);
  }
  records_charged_ = held;
  return true;
}

void Stream::send_records() {
  std::string& records = tls_->output();
  if (records.empty() || is_peer_gone_ || !is_open()) return;
  const ssize_t sent = ::send(fd_.get(), records.data(), records.size(), MSG_NOSIGNAL);
  if (sent >= 0) {
    records.erase(0, static_cast<std::size_t>(sent));
    if (records.empty() && records.capacity() > kRecordsKeptBytes) std::string().swap(records);
    if (records.empty()) group_.budget_.give_back(std::exchange(records_charged_, 0));
  } else if (errno != EAGAIN && errno != EINTR) {
    is_peer_gone_ = true;
  }
}

void Stream::set_deadline(Instant deadline) {
  if (deadline_ == nullptr) {
    deadline_ = std::make_unique<Timer>(&group_.loop_, [this] { end(End::kDeadline, 0); });
  }
  deadline_->arm(deadline);
}

void Stream::close() {
  if (deadline_ != nullptr) deadline_->disarm();  // not destroyed: it may be the caller
  watch_.reset();
  fd_.reset();
  request_processing();
}

void Stream::close_when_drained() {
  is_draining_ = true;
  is_drained_ = false;
  request_processing();
}

void Stream::finish(Instant deadline) {
  if (!is_open() || is_finishing_) return;
  is_finishing_ = true;
  is_held_ = false;
  set_deadline(deadline);
  request_processing();
}

void Stream::end(End why, int error) {
  if (!is_open()) return;
  close();
  is_ending_ = true;
  handler_.on_end(why, error);
  is_ending_ = false;
}

void Stream::set_keep_alive(Duration interval) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(interval).count();
  set_tcp_option(fd_.get(), TCP_KEEPIDLE, seconds);
  set_tcp_option(fd_.get(), TCP_KEEPINTVL, seconds);
}

Duration Stream::round_trip() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  constexpr std::uint32_t kUnknown = ~std::uint32_t{0};
  if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  const bool is_known = size >= offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt &&
                        info.tcpi_min_rtt != kUnknown;
  return std::chrono::microseconds(is_known ? info.tcpi_min_rtt : 0);
}

void Stream::set_user_timeout(Duration timeout) {
  if (!is_open()) return;
  set_tcp_option(fd_.get(), TCP_USER_TIMEOUT,
                 std::chrono::ceil<std::chrono::milliseconds>(timeout).count());
}

void Stream::request_processing() {
  if (is_processing_requested_) return;
  is_processing_requested_ = true;
  group_.request_processing(this);
}

// Appends to one of the two buffers. False: the budget or the stream's own limit is exceeded, and
// the stream has ended.
bool Stream::keep(std::string Buffers::*which, std::string_view bytes) {
  if (buffers_ == nullptr) buffers_ = std::make_unique<Buffers>();
  std::string& buffer = (*buffers_).*which;
  const std::size_t size = buffer.size() + bytes.size();
  const bool is_output = which == &Buffers::output;
  const std::size_t encrypted = is_output && tls_ != nullptr ? tls_->output().size() : 0;
  if (is_output && size - buffers_->sent + encrypted > group_.limits_.output_bytes_max) {
    end(End::kOutputLimit, 0);
    return false;
  }
  if (size > buffer.capacity()) {
    const std::size_t before = heap_bytes(buffer);
    const std::size_t wanted = std::max(size, 2 * buffer.capacity());
    if (!group_.budget_.take(wanted - before)) {
      end(End::kMemoryLimit, 0);
      return false;
    }
    buffers_->charged += wanted - before;
    buffer.reserve(wanted);
  }
  buffer.append(bytes);
  return true;
}

// Clears one of the two buffers, and frees it if it is large.
void Stream::release(std::string Buffers::*which) {
  std::string& buffer = (*buffers_).*which;
  buffer.clear();
  if (buffer.capacity() <= group_.limits_.kept_bytes) return;
  if (buffers_->input.empty() && buffers_->output.empty() && group_.limits_.kept_bytes == 0) {
    free_buffers();
    return;
  }
  std::string().swap(buffer);
  const std::size_t held = heap_bytes(buffers_->input) + heap_bytes(buffers_->output);
  group_.budget_.give_back(buffers_->charged - held);
  buffers_->charged = held;
}

void Stream::free_buffers() {
  if (buffers_ == nullptr) return;
  group_.budget_.give_back(buffers_->charged);
  buffers_.reset();
}

}  // namespace elastic::os
