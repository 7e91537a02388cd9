#pragma once

// A client's connections with coordinators: the attempt to find one, and the session with it. Loop
// thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/call_guard.h"
#include "core/session/identification.h"
#include "core/session/session_machine.h"
#include "core/session/session_wire.h"
#include "elastic/status.h"
#include "host/base/framed_peer.h"
#include "host/base/tokens.h"
#include "os/loop/registration.h"
#include "os/net/address.h"
#include "os/net/dialer.h"
#include "os/net/stream.h"

namespace elastic::host {

// One attempt to find a coordinator: resolves the endpoint, connects, and identifies the server.
class SessionAttempt final : public os::Stream::Handler {
 public:
  using Failure = core::SessionMachine::AttemptFailed;
  using Addresses = std::vector<os::SocketAddress>;
  using Route = std::variant<Addresses, Failure>;

  struct Options {
    std::string host;
    std::uint16_t port = 0;
    // Dialed at once, in parallel with the look-up of `host`. Without it the look-up has no limit.
    std::optional<os::SocketAddress> last_good = std::nullopt;
    Duration limit{};  // of the whole attempt; without last_good, of what follows the look-up
    Duration pace = os::Dialer::kPace;
    Duration node_timeout{};  // the connection's segments are acknowledged within this
    std::shared_ptr<Tokens> tokens = nullptr;  // null: the session is not encrypted
    std::string job_id = {};                   // with tokens
  };
  struct Sink {
    // Returns the addresses to connect to, given those that the name resolved to. May start the
    // coordinator.
    std::function<Route(const Result<Addresses>&)> route;
    // The attempt takes long: the error to report if it does not get further.
    std::function<void(const Status&)> on_delay;
    // Called once, never by the constructor; must not destroy the attempt. The next bytes that the
    // server expects on the connection are a session's magic.
    std::function<void(std::variant<os::DetachedStream, Failure>)> done;
  };

  // `group` outlives the attempt.
  SessionAttempt(PeerGroup* group, Options options, Sink sink);
  SessionAttempt(const SessionAttempt&) = delete;
  SessionAttempt& operator=(const SessionAttempt&) = delete;
  ~SessionAttempt() = default;

  // The server that accepted the connection: "10.0.0.7:29400"; "": none did.
  const std::string& peer() const { return peer_; }

  std::size_t on_bytes(std::string_view bytes) override;
  void on_secured() override;
  void on_end(os::Stream::End why, int error) override;

 private:
  void on_timer();
  void begin();
  std::unique_ptr<os::Dialer> dial(Addresses addresses, std::unique_ptr<os::Dialer>* which);
  void resolved(const Result<Addresses>& found);
  void dialed(std::unique_ptr<os::Dialer>* which, Result<os::Dialer::Connection> connection);
  void connected(os::Dialer::Connection connection);
  void end_branch(Failure failure);
  void begin_handshake(std::string_view unread);
  Status handshake_error() const;
  void hand_over(std::string_view unread);
  void fail(Status why, std::optional<int> exit_code = std::nullopt);
  void finish(std::variant<os::DetachedStream, Failure> outcome);

  os::EventLoop* const loop_;
  const Options options_;
  Sink sink_;
  core::CallGuard guard_;
  Instant deadline_;
  std::unique_ptr<os::NameLookup> lookup_;
  std::unique_ptr<os::Dialer> shortcut_;  // to the last good address
  std::unique_ptr<os::Dialer> dialer_;    // to what the name resolves to
  bool was_begun_ = false;
  std::string peer_;
  session::Identification identification_;
  os::Timer timer_;
  os::Stream stream_;  // last: its handler uses the other members
};

// One connection with a coordinator, from the hello on: frames out, messages in. The messages of
// one iteration are sent in one segment at its end.
class SessionLink final : public FramedPeer {
 public:
  // Both are called from the loop; they may close() the link and must not destroy it.
  struct Sink {
    std::function<void(const session::ServerMessage&)> on_message;
    // Called once, as the last callback. kPeerViolation: invalid data was received.
    std::function<void(const Status&)> on_lost;
  };

  // `connection`: to a coordinator that has identified itself. `group` outlives the link.
  static Result<std::unique_ptr<SessionLink>> open(PeerGroup* group, os::DetachedStream connection,
                                                   Sink sink);

  // The first message is the hello.
  void send(const session::ClientMessage& message);

 private:
  SessionLink(PeerGroup* group, Sink sink)
      : FramedPeer(group, kSessionFrames), sink_(std::move(sink)) {}
  void on_frame(std::string_view frame) override;
  void on_lost(const Status& why) override { sink_.on_lost(why); }

  const Sink sink_;
  std::uint16_t peer_version_ = session::kVersion;
};

}  // namespace elastic::host
