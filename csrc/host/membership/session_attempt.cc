#include "host/membership/session_attempt.h"

#include <algorithm>
#include <utility>

#include "core/session/session_wire.h"
#include "core/store/wire.h"
#include "elastic/agent.h"
#include "os/net/tcp_connect.h"

// Theory of operation. A coordinator's port also speaks TCPStore's protocol, in which the client
// identifies the server: VALIDATE, PING with a number, CHECK of a key that no user can set. A
// coordinator answers with the number and "ready"; a plain store with the number and "not ready".
// Any other answer is from a foreign server. With a token a second CHECK asks whether the
// coordinator has one too, and the TLS handshake follows; nothing else is ever sent in clear then.

namespace elastic::host {
namespace {

// Contains two line ends: servers of line-based protocols answer it, which identifies them.
constexpr std::string_view kNonce = "\r\n\r\n";
constexpr std::size_t kAnswerBytes = kNonce.size() + 1;
constexpr std::size_t kQuoteBytesMax = 24;  // of a foreign greeting

std::string question(bool has_token) {
  std::string bytes;
  wire::append_validate(&bytes);
  wire::append_ping(&bytes, wire::load_integer<std::uint32_t>(kNonce.data()));
  wire::append_list_header(&bytes, wire::Opcode::kCheck, 1);
  wire::append_bytes(&bytes, session::kReservedKey);
  if (!has_token) return bytes;
  wire::append_list_header(&bytes, wire::Opcode::kCheck, 1);
  wire::append_bytes(&bytes, session::kTokenKey);
  return bytes;
}

Status silence_of(const std::string& peer) {
  return {StatusCode::kUnavailable, peer + " accepted the connection but sent no handshake"};
}

// The reply of a foreign server, in printable form.
std::string quote(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes.substr(0, kQuoteBytesMax)) {
    text += c >= ' ' && c < '\x7f' && c != '"' ? c : '.';
  }
  return text + '"';
}

}  // namespace

SessionAttempt::SessionAttempt(os::EventLoop* loop, os::StreamGroup* group, Options options,
                               Sink sink)
    : loop_(loop),
      options_(std::move(options)),
      sink_(std::move(sink)),
      timer_(loop, [this] { on_timer(); }),
      stream_(group, this) {
  timer_.arm(loop_->now());
}

void SessionAttempt::on_timer() {
  if (!std::exchange(was_begun_, true)) {
    begin();
  } else {
    fail(Status(StatusCode::kUnavailable, "the name " + options_.host + " was not resolved in " +
                                              "time, and its last address does not answer"));
  }
}

void SessionAttempt::begin() {
  deadline_ = loop_->now() + options_.limit;
  if (options_.last_good) {
    timer_.arm(deadline_);
    shortcut_ = dial({*options_.last_good}, &shortcut_);
  }
  auto lookup = os::NameLookup::start(loop_, options_.host, options_.port,
                                      [this](const Result<Addresses>& found) { resolved(found); });
  if (lookup.ok()) {
    lookup_ = *std::move(lookup);
  } else {
    end_branch({lookup.status(), std::nullopt});
  }
}

std::unique_ptr<os::Dialer> SessionAttempt::dial(Addresses addresses,
                                                 std::unique_ptr<os::Dialer>* which) {
  return std::make_unique<os::Dialer>(loop_, std::move(addresses), options_.pace, deadline_,
                                      [this, which](Result<os::Dialer::Connection> connection) {
                                        dialed(which, std::move(connection));
                                      });
}

void SessionAttempt::resolved(const Result<Addresses>& found) {
  lookup_.reset();
  timer_.disarm();
  auto route = sink_.route(found);
  if (auto* failure = std::get_if<Failure>(&route)) {
    end_branch(std::move(*failure));
    return;
  }
  auto& addresses = std::get<Addresses>(route);
  if (shortcut_ != nullptr) {  // the last good address is being dialed
    std::erase_if(addresses, [this](const os::SocketAddress& one) {
      return one.text() == options_.last_good->text();
    });
    if (addresses.empty()) return;
  }
  deadline_ = loop_->now() + options_.limit;
  dialer_ = dial(std::move(addresses), &dialer_);
}

// The attempt fails when its last dialer has failed.
void SessionAttempt::end_branch(Failure failure) {
  if (lookup_ == nullptr && shortcut_ == nullptr && dialer_ == nullptr) finish(std::move(failure));
}

void SessionAttempt::dialed(std::unique_ptr<os::Dialer>* which,
                            Result<os::Dialer::Connection> connection) {
  which->reset();
  if (!connection.ok()) {
    end_branch({connection.status(), std::nullopt});
    return;
  }
  timer_.disarm();
  lookup_.reset();
  shortcut_.reset();
  dialer_.reset();
  connected(*std::move(connection));
}

void SessionAttempt::connected(os::Dialer::Connection connection) {
  peer_ = connection.peer.text();
  os::expect_liveness(connection.fd.get(), options_.node_timeout);
  if (Status started = stream_.start({.fd = std::move(connection.fd)}); !started.ok()) {
    fail(std::move(started));
    return;
  }
  stream_.set_deadline(deadline_);
  stream_.write(question(options_.tokens != nullptr));
  stream_.flush();
  sink_.on_delay(silence_of(peer_));
}

std::size_t SessionAttempt::answer_bytes() const {
  return kAnswerBytes + (options_.tokens != nullptr ? 1 : 0);
}

std::size_t SessionAttempt::on_bytes(std::string_view bytes) {
  // Reads exactly the answer: the bytes that follow belong to the session.
  const std::size_t used = std::min(bytes.size(), answer_bytes() - answer_.size());
  answer_.append(bytes.substr(0, used));
  judge_answer(bytes.substr(used));
  return bytes.size();
}

void SessionAttempt::on_end(os::Stream::End why, int error) {
  if (why == os::Stream::End::kTlsFailed) {
    fail(handshake_error(), kExitRejected);
  } else if (why == os::Stream::End::kClosedByPeer) {
    fail(Status(StatusCode::kUnavailable, peer_ + " closed the connection without a handshake"));
  } else if (why == os::Stream::End::kBroken) {
    fail(os::connection_error("the connection to " + peer_ + " broke", error));
  } else {
    fail(silence_of(peer_));
  }
}

void SessionAttempt::judge_answer(std::string_view unread) {
  const std::string_view echo = std::string_view(answer_).substr(0, kNonce.size());
  const std::string_view checks = std::string_view(answer_).substr(echo.size());
  const bool is_whole = answer_.size() == answer_bytes();
  const bool is_store =
      kNonce.starts_with(echo) && std::all_of(checks.begin(), checks.end(), [](char check) {
        return check == wire::kReady || check == wire::kNotReady;
      });
  if (!is_store) {
    fail(Status(StatusCode::kPeerViolation, peer_ +
                                                " speaks another protocol and is not a "
                                                "coordinator: it sent " +
                                                quote(answer_)),
         kExitRejected, true);
  } else if (is_whole && checks.front() == wire::kNotReady) {
    fail(Status(StatusCode::kPeerViolation,
                peer_ + " is a plain TCPStore, not a coordinator: use another endpoint, or share "
                        "the job's state through that store (--rdzv-backend=tcpstore)"),
         kExitRejected, true);
  } else if (is_whole && checks.back() == wire::kNotReady) {
    fail(Status(StatusCode::kPeerViolation,
                "the coordinator at " + peer_ + " has no token, and this node has one (" +
                    options_.tokens->name() +
                    "): give the coordinator the same token, or remove it here"),
         kExitRejected);
  } else if (is_whole && options_.tokens != nullptr) {
    begin_handshake(unread);
  } else if (is_whole) {
    hand_over(unread);
  }
}

void SessionAttempt::begin_handshake(std::string_view unread) {
  auto tls = options_.tokens->connect(options_.job_id);
  if (!tls.ok()) {
    fail(tls.status(), kExitUsage);
  } else if (!unread.empty() || stream_.num_unsent() > 0) {  // the client begins the handshake
    fail(Status(StatusCode::kPeerViolation, peer_ + " sent bytes before the handshake"));
  } else {
    stream_.secure(*std::move(tls));
  }
}

void SessionAttempt::on_secured() { hand_over({}); }

Status SessionAttempt::handshake_error() const {
  const os::TlsSession& tls = *stream_.tls();
  const std::string own = options_.tokens->name();
  if (tls.error() == os::TlsSession::Error::kRejectedByPeer) {
    // An observer may name no job.
    const std::string job = options_.job_id.empty() ? "" : " for job " + options_.job_id;
    return {StatusCode::kFailedPrecondition,
            "the coordinator at " + peer_ + " does not accept " + own + job + " (" +
                tls.error_text() +
                "): use the same token and the same run id (--rdzv-id) on all nodes"};
  }
  return {StatusCode::kPeerViolation, "the server at " + peer_ + " does not know the secret of " +
                                          own + " (" + tls.error_text() +
                                          "): use the same token on all nodes"};
}

void SessionAttempt::hand_over(std::string_view unread) {
  if (!stream_.can_detach()) {
    fail(Status(StatusCode::kUnavailable, peer_ + " closed the connection after the handshake"));
    return;
  }
  finish(stream_.detach(unread));
}

void SessionAttempt::fail(Status why, std::optional<int> exit_code, bool is_foreign) {
  finish(Failure{std::move(why), exit_code, is_foreign});
}

void SessionAttempt::finish(std::variant<os::DetachedStream, Failure> outcome) {
  timer_.disarm();
  stream_.close();
  sink_.done(std::move(outcome));
}

}  // namespace elastic::host
