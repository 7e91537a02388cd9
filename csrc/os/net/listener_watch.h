#pragma once

// Connects to a listening socket, whose owner accepts no connections or closes them at once, and
// reports when the socket no longer exists.
//
// Loop thread only. The kernel makes the connection, whatever the owner does, and resets it when
// the last process that holds the socket closes it or ends.

#include <cstdint>
#include <functional>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::os {

class ListenerWatch final : private EventLoop::FdHandler {
 public:
  enum class Found : std::uint8_t {
    kAnswered,  // the connection was made; one of the others may follow
    kRefused,   // or reset: nothing listens there
    kUnknown,   // no answer within the limit, no route, closed in order by the owner, …
  };
  // May destroy the watch.
  using Report = std::function<void(Found)>;

  // Reports from the loop, never from this constructor. `limit`: for the connection to be made.
  ListenerWatch(EventLoop* loop, const SocketAddress& address, Duration limit, Report report);

 private:
  void on_ready(std::uint32_t events) override;
  void report(Found found);
  void begin(const SocketAddress& address);
  void finish(Found found);

  EventLoop* const loop_;
  const Report report_;
  UniqueFd fd_;
  bool is_connected_ = false;
  EventLoop::Timer limit_;
  EventLoop::Watch watch_;  // last: destroyed before the members that its handler uses
};

}  // namespace elastic::os
