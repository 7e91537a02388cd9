#include "host/membership/session_attempt.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "core/session/session_wire.h"
#include "core/store/wire.h"
#include "elastic/agent.h"
#include "os/net/tcp_connect.h"

// Theory of operation. A coordinator's port also speaks TCPStore's protocol, so the question is
// asked in it: VALIDATE, PING with a number, CHECK of a key that no user can set. A coordinator
// repeats the number and says that the key is ready; a plain store repeats the number and says that
// it is not. Anything else that comes is from something else.

namespace elastic::host {
namespace {

// Two line ends: servers of protocols that are read by lines answer it, and give themselves away.
constexpr std::string_view kNonce = "\r\n\r\n";
constexpr std::size_t kAnswerBytes = kNonce.size() + 1;
constexpr std::size_t kQuoteBytesMax = 24;  // of a foreign greeting

std::string question() {
  std::string bytes;
  wire::append_validate(&bytes);
  wire::append_ping(&bytes, wire::load_integer<std::uint32_t>(kNonce.data()));
  wire::append_list_header(&bytes, wire::Opcode::kCheck, 1);
  wire::append_bytes(&bytes, session::kReservedKey);
  return bytes;
}

Status silence_of(const std::string& peer) {
  return {StatusCode::kUnavailable, peer + " took the connection and has not said who it is"};
}

// What a stranger said, as it may stand in a message.
std::string quote(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes.substr(0, kQuoteBytesMax)) {
    text += c >= ' ' && c < '\x7f' && c != '"' ? c : '.';
  }
  return text + '"';
}

}  // namespace

SessionAttempt::SessionAttempt(os::EventLoop* loop, Options options, Sink sink)
    : loop_(loop),
      options_(std::move(options)),
      sink_(std::move(sink)),
      timer_(loop, [this] { begin(); }) {
  timer_.arm(loop_->now());
}

void SessionAttempt::begin() {
  if (fd_.valid()) {
    fail(silence_of(peer_));
    return;
  }
  auto lookup = os::NameLookup::start(loop_, options_.host, options_.port,
                                      [this](const Result<Addresses>& found) { resolved(found); });
  if (!lookup.ok()) {
    fail(lookup.status());
    return;
  }
  lookup_ = *std::move(lookup);
}

void SessionAttempt::resolved(const Result<Addresses>& found) {
  auto route = sink_.route(found);
  if (auto* failure = std::get_if<Failure>(&route)) {
    finish(std::move(*failure));
    return;
  }
  deadline_ = loop_->now() + options_.limit;
  dialer_ = std::make_unique<os::Dialer>(
      loop_, std::get<Addresses>(std::move(route)), options_.pace, deadline_,
      [this](Result<os::Dialer::Connection> connection) { connected(std::move(connection)); });
}

void SessionAttempt::connected(Result<os::Dialer::Connection> connection) {
  if (!connection.ok()) {
    fail(connection.status());
    return;
  }
  fd_ = std::move(connection->fd);
  peer_ = connection->peer.text();
  os::expect_liveness(fd_.get(), options_.node_timeout);
  const std::string bytes = question();
  // A new socket has room for it.
  if (::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(bytes.size())) {
    fail(os::connection_error("the connection to " + peer_ + " broke", errno));
    return;
  }
  auto watch = loop_->watch(fd_.get(), EPOLLIN, this);
  if (!watch.ok()) {
    fail(watch.status());
    return;
  }
  watch_ = *std::move(watch);
  timer_.arm(deadline_);
  sink_.on_delay(silence_of(peer_));
}

void SessionAttempt::on_ready(std::uint32_t) {
  // Not a byte more than the answer: what follows belongs to the session.
  char bytes[kAnswerBytes];
  const ssize_t got = ::recv(fd_.get(), bytes, kAnswerBytes - answer_.size(), 0);
  if (got > 0) {
    answer_.append(bytes, static_cast<std::size_t>(got));
    judge_answer();
  } else if (got == 0) {
    fail(Status(StatusCode::kUnavailable,
                peer_ + " closed the connection without saying who it is"));
  } else if (errno != EAGAIN && errno != EINTR) {
    fail(os::connection_error("the connection to " + peer_ + " broke", errno));
  }
}

void SessionAttempt::judge_answer() {
  const std::string_view echo = std::string_view(answer_).substr(0, kNonce.size());
  const bool is_whole = answer_.size() == kAnswerBytes;
  const bool is_store = kNonce.starts_with(echo) && (!is_whole || answer_.back() == wire::kReady ||
                                                     answer_.back() == wire::kNotReady);
  if (!is_store) {
    fail(Status(StatusCode::kPeerViolation, peer_ +
                                                " speaks another protocol, and is no "
                                                "coordinator: it said " +
                                                quote(answer_)),
         kExitRefused);
  } else if (is_whole && answer_.back() == wire::kNotReady) {
    fail(Status(StatusCode::kPeerViolation,
                peer_ + " is a plain TCPStore and no coordinator: use another endpoint, or share "
                        "the job's state through that store (--rdzv-backend=tcpstore)"),
         kExitRefused);
  } else if (is_whole) {
    watch_.reset();
    finish(std::move(fd_));
  }
}

void SessionAttempt::fail(Status why, std::optional<int> exit_code) {
  finish(Failure{std::move(why), exit_code});
}

void SessionAttempt::finish(std::variant<os::UniqueFd, Failure> outcome) {
  timer_.disarm();
  watch_.reset();
  const auto done = std::move(sink_.done);
  done(std::move(outcome));  // may have destroyed the attempt
}

}  // namespace elastic::host
