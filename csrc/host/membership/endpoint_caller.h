#pragma once

// Announces the elected coordinator of this process at the endpoints of its job (R8): nodes that
// start later look there, and a process that was started there may have begun the job again.
//
// One connection to each endpoint at a time, as a session that begins with the announcement. The
// addresses of a name take turns. Loop thread only.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/session/session_wire.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_options.h"
#include "host/base/framed_peer.h"
#include "host/base/tokens.h"
#include "host/membership/session_link.h"
#include "os/loop/registration.h"

namespace elastic::host {

class EndpointCaller {
 public:
  struct Sink {
    // A process at an endpoint coordinates the job, or directs its nodes to this coordinator.
    std::function<void(const succession::Incumbent& incumbent)> met;
    // Every endpoint leads to this process.
    std::function<void()> all_are_here;
  };

  // The limit of a whole call. Less than kAnnounceInterval, so that each announcement resolves the
  // name again: a host that was replaced may have another address.
  static constexpr Duration kCallTimeout = std::chrono::milliseconds(900);

  // `loop` outlives the object.
  EndpointCaller(os::EventLoop* loop, std::vector<Endpoint> endpoints, std::string job_id,
                 Sink sink, Duration call_timeout = kCallTimeout);
  EndpointCaller(const EndpointCaller&) = delete;
  EndpointCaller& operator=(const EndpointCaller&) = delete;
  ~EndpointCaller();

  // `tokens`: null: nothing is encrypted.
  void announce(const succession::Incumbent& incumbent, std::shared_ptr<Tokens> tokens);

 private:
  struct Call {
    Endpoint endpoint;
    std::size_t turn = 0;        // of the name's addresses
    std::string address;         // of this turn
    std::size_t num_others = 0;  // addresses that may belong to other processes
    std::set<std::string> own;   // addresses of this process
    std::unique_ptr<SessionAttempt> attempt;
    std::unique_ptr<SessionLink> link;
    std::unique_ptr<os::Timer> timeout;
  };

  std::variant<SessionAttempt::Addresses, SessionAttempt::Failure> route(
      Call* call, const Result<SessionAttempt::Addresses>& found);
  void connected(Call* call, std::variant<os::DetachedStream, SessionAttempt::Failure> outcome);
  void replied(Call* call, const session::ServerMessage& message);
  void end(Call* call);

  os::EventLoop* const loop_;
  const std::string job_id_;
  const Sink sink_;
  const Duration call_timeout_;
  const std::shared_ptr<PeerGroup> group_;
  succession::Incumbent incumbent_;
  std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace elastic::host
