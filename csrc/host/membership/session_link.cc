#include "host/membership/session_link.h"

#include <utility>

#include "elastic/agent.h"
#include "os/loop/event_loop.h"

// Theory of operation. The server is identified (core/session/identification.h). With a token the
// TLS handshake follows; nothing else is ever sent in clear then.

namespace elastic::host {
namespace {

Status silence_of(const std::string& peer) {
  return {StatusCode::kUnavailable, peer + " accepted the connection but sent no handshake"};
}

}  // namespace

SessionAttempt::SessionAttempt(PeerGroup* group, Options options, Sink sink)
    : loop_(&group->loop),
      options_(std::move(options)),
      sink_(std::move(sink)),
      identification_(options_.tokens != nullptr),
      timer_(loop_, [this] { on_timer(); }),
      stream_(&group->streams, this) {
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
  Route route = [&] {
    const core::CallGuard::Scope calling(&guard_);
    return sink_.route(found);
  }();
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
  stream_.write(identification_.request());
  stream_.flush();
  const core::CallGuard::Scope calling(&guard_);
  sink_.on_delay(silence_of(peer_));
}

// Reads exactly the reply: the bytes that follow belong to the session.
std::size_t SessionAttempt::on_bytes(std::string_view bytes) {
  const std::string_view unread = bytes.substr(identification_.receive(bytes));
  const auto server = identification_.server();
  if (server == session::Identification::Server::kUnknown) return bytes.size();
  const bool has_token = options_.tokens != nullptr;
  if (server != session::Identification::Server::kCoordinator) {
    finish(identification_.rejection(peer_, has_token ? options_.tokens->name() : ""));
  } else if (has_token) {
    begin_handshake(unread);
  } else {
    hand_over(unread);
  }
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
  const auto& tls = *stream_.tls();
  const std::string own = options_.tokens->name();
  if (tls.is_rejected_by_peer()) {
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

void SessionAttempt::fail(Status why, std::optional<int> exit_code) {
  finish(Failure{std::move(why), exit_code});
}

void SessionAttempt::finish(std::variant<os::DetachedStream, Failure> outcome) {
  timer_.disarm();
  stream_.close();
  const core::CallGuard::Scope calling(&guard_);
  sink_.done(std::move(outcome));
}

// ---- The session.

Result<std::unique_ptr<SessionLink>> SessionLink::open(PeerGroup* group,
                                                       os::DetachedStream connection, Sink sink) {
  std::unique_ptr<SessionLink> link(new SessionLink(group, std::move(sink)));
  if (Status status = link->connect(std::move(connection)); !status.ok()) return status;
  link->greeted();  // a coordinator's first message may be a long one
  return link;
}

void SessionLink::send(const session::ClientMessage& message) {
  std::string bytes;
  session::append(&bytes, message);
  write(bytes);
}

void SessionLink::on_frame(std::string_view frame) {
  session::ServerMessage message;
  const session::DecodeResult decoded = session::decode(frame, &message, peer_version_);
  if (decoded.status == session::DecodeStatus::kViolation) {
    return reject(Status(StatusCode::kPeerViolation, std::string(decoded.error.message())));
  }
  if (decoded.status != session::DecodeStatus::kMessage) return;
  if (const auto* hello = std::get_if<session::ServerHello>(&message)) {
    peer_version_ = hello->version;
  }
  sink_.on_message(message);
}

}  // namespace elastic::host
