#pragma once

// The connections between the voters of one job: a listening port, and connections to the ports of
// other nodes.
//
// Loop thread only. Frames are opaque here. A frame can be lost with its connection; its sender
// repeats it. An address is dialed when a frame is to be sent to it, and the connection stays open
// for further frames.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/call_guard.h"
#include "core/register/register_types.h"
#include "core/succession/voter_wire.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/base/admission.h"
#include "host/base/framed_peer.h"
#include "host/base/tokens.h"
#include "os/loop/registration.h"
#include "os/net/dialer.h"
#include "os/net/stream.h"

namespace elastic::host {

class VoterLink;

struct VoterLinkLimits {
  // A connection that has not sent its greeting by then is closed.
  Duration greeting_timeout = std::chrono::seconds(5);
  Duration connect_timeout = std::chrono::seconds(2);
  // Connections without a greeting, of one address and in total. One more closes the oldest one.
  std::size_t pending_per_address_max = 16;
  std::size_t pending_max = 128;
  // Accepted connections with a greeting, of one address and in total. One more closes the one that
  // was idle for longest.
  std::size_t accepted_per_address_max = 32;
  std::size_t accepted_max = 256;
  // Connections that this process has opened, in the same way.
  std::size_t opened_max = 256;
  // Received and unsent bytes of all connections, and unsent ones of each: the largest record, and
  // a later one that replaces it.
  std::size_t buffered_bytes_max = 2 * reg::kVotersMax * succession::kVoterFrameBytesMax;
  std::size_t unsent_bytes_max = 2 * succession::kVoterFrameBytesMax;
  // Sent bytes are acknowledged within this, or the connection is closed.
  Duration silence_max = std::chrono::seconds(5);
};

class VoterLinks {
 public:
  using ConnectionId = std::uint64_t;  // never 0, never used again

  // Called from the loop; must not destroy the links.
  struct Sink {
    // `address`: to which this process has opened the connection; "": it was accepted.
    std::function<void(ConnectionId from, const std::string& address, std::string_view frame)>
        on_frame;
    // The address could not be reached, or the connection to it has ended. Frames to it are lost.
    std::function<void(const std::string& address, const Status& why)> on_lost;
    std::function<void(const std::string& message)> log;
    // A connection has ended. May be empty.
    std::function<void(ConnectionId connection)> on_ended = {};
  };

  // `job_id`: "": of any job, for a witness, which opens no connections. `tokens`: null: the
  // connections are not encrypted. `loop` outlives the object.
  VoterLinks(os::EventLoop* loop, std::string job_id, std::shared_ptr<Tokens> tokens,
             const VoterLinkLimits& limits, Sink sink);
  VoterLinks(const VoterLinks&) = delete;
  VoterLinks& operator=(const VoterLinks&) = delete;
  ~VoterLinks();

  // Accepts connections at a port of the range; {0, 0}: any port. Call it once; errors are the same
  // as of os::Listener::open().
  Status listen(const std::string& host, const PortRange& ports);
  std::uint16_t port() const;  // 0: listen() was not called
  // The job of an open connection; with tokens the peer has proved that it belongs to it.
  const std::string& job_of(ConnectionId connection) const;
  // As VoterLinkLimits::silence_max, for connections that begin from now on.
  void set_silence_max(Duration silence_max) { limits_.silence_max = silence_max; }
  // The address of its other end, without the port. REQUIRES: the connection is open
  std::string host_of(ConnectionId connection) const;

  // Over this connection if it is open, otherwise to the address: "10.0.0.7:4711", "[::1]:4711".
  // With neither the frame is dropped.
  void send(ConnectionId connection, const std::string& address, std::string_view frame);

 private:
  friend class VoterLink;
  class Acceptor;

  // An address that is being dialed, or with which greetings are being exchanged.
  struct Attempt {
    std::unique_ptr<os::Dialer> dialer;
    VoterLink* link = nullptr;
    std::vector<std::string> waiting;
  };

  void dial(const std::string& address, Attempt* attempt);
  void dialed(const std::string& address, Result<os::Dialer::Connection> connection);
  void fail(const std::string& address, const Status& why);
  void adopt(os::DetachedStream connection);
  void greeted(VoterLink* link);
  void closed(VoterLink* link, const Status& why);
  void remove(VoterLink* link);
  void limit_open(const VoterLink& newest);
  void log_rejected(const std::string& message);

  os::EventLoop* const loop_;
  const std::string job_id_;
  const std::shared_ptr<Tokens> tokens_;
  VoterLinkLimits limits_;  // constant, but for silence_max
  const Sink sink_;
  core::CallGuard guard_;

  PeerGroup group_;
  PendingConnections pending_;
  std::unique_ptr<Acceptor> acceptor_;
  std::map<std::string, Attempt> attempts_;
  std::map<ConnectionId, std::unique_ptr<VoterLink>> links_;
  ConnectionId last_id_ = 0;
  std::uint64_t activity_ = 0;  // numbers frames, so that the idlest connection is found
  std::size_t rejected_ = 0;    // in the interval that ends then
  Instant rejected_end_;
};

// One of the connections: the greetings, then frames.
class VoterLink final : public FramedPeer {
 public:
  // `dialed`: the address; "": the connection was accepted.
  VoterLink(VoterLinks* owner, VoterLinks::ConnectionId number, std::string dialed)
      : FramedPeer(&owner->group_, kVoterFrames),
        id(number),
        address(std::move(dialed)),
        owner_(*owner) {}

  Status start(os::DetachedStream connection);
  void send(std::string_view frame);
  bool is_accepted() const { return address.empty(); }
  // Frames of VoterLinks' users can be sent.
  bool is_ready() const { return is_greeted() && is_open(); }

  const VoterLinks::ConnectionId id;
  const std::string address;
  std::uint64_t last_active = 0;  // VoterLinks::activity_
  std::string job;                // once the greetings were exchanged

  void on_secured() override;
  void on_closed() override { owner_.remove(this); }

 private:
  void reject(const Status& why) override;
  void on_frame(std::string_view frame) override;
  void on_lost(const Status& why) override { owner_.closed(this, why); }
  void on_greeting(const voter::Greeting& greeting);

  VoterLinks& owner_;
};

}  // namespace elastic::host
