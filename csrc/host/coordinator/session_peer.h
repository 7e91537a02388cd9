#pragma once

// One agent's session with a coordinator: frames from its socket to the service, messages back.
//
// Loop thread only. A peer never destroys itself: at the end of the iteration in which its stream
// closed, it asks the service, which owns it, to remove it.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/session/session_wire.h"
#include "host/base/admission.h"
#include "host/base/framed_peer.h"
#include "os/loop/registration.h"
#include "os/net/stream.h"

namespace elastic::host {

class CoordinatorJob;
class JobObservers;
class SessionPeer;

// Shared by the sessions of one coordinator.
struct SessionContext : PeerGroup {
  SessionContext(os::EventLoop* event_loop, Duration hello, std::size_t unsent_max,
                 std::size_t total_max, std::function<void()> on_pending = {})
      : PeerGroup(event_loop, unsent_max, total_max, std::move(on_pending)), hello_timeout(hello) {}

  // Handles a message. An error ends the session.
  std::function<Status(SessionPeer* peer, session::ClientMessage& message)> on_message;
  // A message is ignored, or the session is closed: why. May be empty, as on_refusal.
  std::function<void(SessionPeer*, const Status& why, bool is_ignored)> on_fault;
  std::function<void(SessionPeer*)> on_closed;  // removes the session
  // The client has proved that it knows a token, or has failed to: `why`.
  std::function<void(SessionPeer*)> on_secured;
  std::function<void(SessionPeer*, std::string_view why)> on_refusal;
  std::shared_ptr<Tokens> tokens;         // null: sessions need no token
  PendingConnections* pending = nullptr;  // sessions that have not sent their hello

  const Duration hello_timeout;
  session::ClientMessage message;  // reused for each message
  std::string frame;               // reused by send()
};

class SessionPeer final : public FramedPeer {
 public:
  // Takes a connection whose unread bytes begin with the magic or, if there are tokens, a TLS
  // handshake, and reads it at the end of the iteration. `context` outlives the peer.
  static Result<std::unique_ptr<SessionPeer>> create(SessionContext* context,
                                                     os::DetachedStream connection);

  // Sent at the end of the iteration. A session that does not read is closed.
  void send(const session::ServerMessage& message);
  // The same for a message that many sessions are sent: encoded once, and copied when it is this
  // session's turn to send, or before its next message.
  void send_shared(std::shared_ptr<const std::string> frame);
  static std::shared_ptr<const std::string> shared_frame(const session::ServerMessage& message);
  // Sends an error as the final message, and gives the client time to read it and close.
  void finish(const Status& error);
  // Sends the final message of a coordinator that ends, followed by the end of the stream.
  void end(const session::ServerMessage& last);

  // A peer that acknowledges nothing for this long is disconnected.
  void set_user_timeout(Duration timeout) {
    stream().set_user_timeout(std::max<Duration>(timeout, std::chrono::seconds(1)));
  }

  // The addresses show that the client runs on this host.
  bool is_from_this_host() const;

  // What the client's token allows, and for which job. Without tokens: everything, for any job.
  PeerRole role() const { return identity_ ? identity_->role : PeerRole::kNode; }
  bool may_name(const std::string& job_id) const {
    return !identity_ || identity_->job_id == job_id;
  }

  // Set by the service: which node this is.
  CoordinatorJob* job = nullptr;  // null before the hello, and after a newer session took over
  bool is_observer = false;
  bool opens_store = false;          // its host may use the store at the coordinator's port
  JobObservers* observed = nullptr;  // of an observer's session, instead of `job`
  std::uint16_t peer_version = session::kVersion;  // from its hello
  NodeId node;
  std::string name;                 // of the node, once it has joined
  bool has_joined = false;          // it sent Join or Resume, and no Leave since
  bool opens_ports = false;         // session::kOpensPorts
  std::uint32_t timings_of = 0;     // the generation of the job whose timings it was sent
  std::uint16_t liveness_port = 0;  // from its hello; 0: none
  Duration least_grace{};           // the time that its node needs to resume
  // From its hello, if the node takes part in the succession of its coordinator.
  std::optional<session::SuccessionHello> succession;
  // Its last join, while the address in it is valid on this host only.
  std::unique_ptr<rdzv::Join> loopback_join;
  std::optional<Instant> unanswered_beat;  // until the node's leave is in force
  std::size_t index = 0;                   // in the service's list

  void on_sending() override;
  void on_secured() override;
  void on_closed() override { context_.on_closed(this); }

 private:
  explicit SessionPeer(SessionContext* context)
      : FramedPeer(context, kSessionFrames), context_(*context) {}

  void reject(const Status& why) override;
  // Sends the reason to a client that has not joined. The session of a node that has joined is
  // closed without: it resumes, whereas a refusal would end it and its workers.
  void refuse(const Status& why);
  void on_frame(std::string_view frame) override;
  void on_lost(const Status& why) override;

  SessionContext& context_;
  std::optional<PeerIdentity> identity_;                    // proved with a token
  std::vector<std::shared_ptr<const std::string>> shared_;  // not written yet
};

}  // namespace elastic::host
