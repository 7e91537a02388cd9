#pragma once

// One end of a connection that carries frames: of the sessions (nodes, observers, announcements)
// and of the voters.
//
// Here is what these protocols share: the magic, the limits of a frame, the deadline of the
// greeting, the token, and the reasons with which a connection ends. Their messages are in the
// derived classes. Loop thread only. Only on_closed() may destroy a peer (os/net/stream.h).

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/frame.h"
#include "core/base/memory_budget.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "elastic/token_options.h"
#include "host/base/admission.h"
#include "host/base/tokens.h"
#include "os/loop/registration.h"
#include "os/net/address.h"
#include "os/net/stream.h"

namespace elastic::host {

struct FrameProtocol {
  core::Protocol frames;           // their name and the longest one
  std::size_t greeting_bytes_max;  // the longest first frame
  std::string_view magic;          // the side that connects sends it first
  // Why a connection ends.
  const char* no_magic;
  const char* no_greeting;  // the first frame is another one
  const char* silent;       // there is none by the deadline
  const char* no_token;
  const char* set_token;  // follows each reason about a token
  const char* closed;
  const char* broke;
  const char* does_not_read;
};
extern const FrameProtocol kSessionFrames;
extern const FrameProtocol kVoterFrames;

// Shared by the peers of one owner, which it outlives.
struct PeerGroup {
  // A peer with more unsent bytes than `unsent_max` is closed; `total_max` limits the buffers of
  // all of them. `on_pending`: see os::StreamGroup. `event_loop` outlives the group.
  PeerGroup(os::EventLoop* event_loop, std::size_t unsent_max, std::size_t total_max,
            std::function<void()> on_pending = {});

  os::EventLoop& loop;
  MemoryBudget budget;
  os::StreamGroup streams;
};

// Destroys a peer that is calling its owner after it has returned. The owner may be destroyed in
// the same iteration, so the peer keeps its group.
void release_later(const std::shared_ptr<PeerGroup>& group, std::shared_ptr<void> peer);
template <typename Peer>
void retire(const std::shared_ptr<PeerGroup>& group, std::unique_ptr<Peer> peer) {
  if (peer != nullptr) release_later(group, std::shared_ptr<Peer>(std::move(peer)));
}

// Null: the options have none, and connections are not encrypted. kInvalidArgument: the file or its
// content; kFailedPrecondition: TLS cannot be used. `log`: receives why a changed file is not used;
// the earlier tokens stay in force.
Result<std::shared_ptr<Tokens>> open_tokens(const TokenOptions& options,
                                            std::function<void(const std::string&)> log);

class FramedPeer : private os::Stream::Handler {
 public:
  FramedPeer(const FramedPeer&) = delete;
  FramedPeer& operator=(const FramedPeer&) = delete;

  // Frames can be sent.
  bool is_open() const { return stream_.is_open() && !is_finishing_; }
  // The greeting was received: longer frames may follow, at any time.
  void greeted();
  bool is_greeted() const { return is_greeted_; }
  // Frames are sent at the end of the iteration; this sends them at once, as far as the socket
  // accepts them. A broken connection is reported later.
  void flush();
  void close();
  const os::SocketAddress& local() const { return local_; }
  const os::SocketAddress& remote() const { return remote_; }
  // Zero: unknown, or the connection has ended.
  Duration round_trip() const;

 protected:
  // The side that accepts connections.
  struct Entrance {
    Duration greeting_timeout;
    PendingConnections* pending;  // outlives the peer
    Tokens* tokens;               // the same; null: connections are not encrypted
  };

  FramedPeer(PeerGroup* group, const FrameProtocol& protocol);
  ~FramedPeer() = default;

  // Starts the peer on a connection that was accepted. With tokens its first byte shows whether the
  // other side begins a TLS handshake, or has no token and can be sent the reason in clear.
  Status accept(os::DetachedStream connection, const Entrance& entrance);
  // The same on a connection that this side has opened; the magic precedes the first frame.
  Status connect(os::DetachedStream connection);

  void write(std::string_view frame);
  // Sends the final frame, and gives the other side time to read it and close.
  void finish(std::string_view last);
  // Closes the connection, which is of no use to the other side, and reports it to on_lost(). A
  // protocol may send the reason instead, by finish().
  virtual void reject(const Status& why);
  // A complete frame, with its length.
  virtual void on_frame(std::string_view frame) = 0;
  // The connection has ended. Called once, and not after close() and finish(). kUnavailable: it was
  // closed, or broke; kFailedPrecondition: the tokens differ; kPeerViolation: invalid bytes.
  virtual void on_lost(const Status& why) = 0;

  os::Stream& stream() { return stream_; }
  // What a client has proved with its token, from on_secured() on. nullopt: it has no name of ours.
  std::optional<PeerIdentity> proved_identity() const;

 private:
  std::size_t on_bytes(std::string_view bytes) final;
  void on_end(os::Stream::End why, int error) final;
  void begin_tls(std::string_view bytes);
  void await_rest(bool has_begun, bool is_another);
  Status end_status(os::Stream::End why, int error) const;
  Status tls_status(const os::TlsSession& tls) const;
  Status token_status(const std::string& why) const;

  PeerGroup& group_;
  const FrameProtocol& protocol_;
  os::SocketAddress local_, remote_;
  Tokens* tokens_ = nullptr;  // until the first byte of an accepted connection
  std::unique_ptr<PendingConnections::Ticket> pending_;  // until the greeting
  bool must_send_magic_ = false;
  bool awaits_magic_ = false;
  bool is_greeted_ = false;
  bool is_frame_begun_ = false;  // a part of a frame is buffered: it has a deadline
  bool is_finishing_ = false;
  os::Stream stream_;  // last: its handler uses the other members
};

}  // namespace elastic::host
