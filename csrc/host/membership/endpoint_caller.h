#pragma once

// Announces the elected coordinator of this process at the endpoints of its job (R8): nodes that
// start later look there, and a process that was started there may have begun the job again.
//
// One connection to each endpoint at a time, as a session that begins with the announcement. The
// addresses of a name take turns. Loop thread only.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/session/session_wire.h"
#include "elastic/rendezvous_options.h"
#include "host/auth/token_source.h"
#include "host/membership/session_attempt.h"
#include "host/membership/session_link.h"
#include "os/loop/event_loop.h"
#include "os/net/stream.h"

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
  void announce(const succession::Incumbent& incumbent, std::shared_ptr<TokenSource> tokens);

 private:
  // Outlives the connections that are destroyed after a callback of theirs has returned.
  struct Streams {
    explicit Streams(os::EventLoop* loop);
    MemoryBudget budget;
    os::StreamGroup group;
  };
  struct Call {
    Endpoint endpoint;
    std::size_t turn = 0;        // of the name's addresses
    std::string address;         // of this turn
    std::size_t num_others = 0;  // addresses that may belong to other processes
    std::set<std::string> own;   // addresses of this process
    std::unique_ptr<SessionAttempt> attempt;
    std::unique_ptr<SessionLink> link;
    std::unique_ptr<os::EventLoop::Timer> timeout;
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
  const std::shared_ptr<Streams> streams_;
  succession::Incumbent incumbent_;
  std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace elastic::host
