#pragma once

// Connects to one of several addresses from a loop.
//
// Loop thread only. Each address is tried some time after the one before it, and all of them again
// and again beside the attempts that still hang: the kernel repeats a lost segment ever more
// slowly, and who waits for a path to come back wants to know at once.

#include <functional>
#include <memory>
#include <vector>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::os {

class Dialer {
 public:
  struct Connection {
    UniqueFd fd;
    SocketAddress peer;
  };
  using Done = std::function<void(Result<Connection>)>;

  // How long an address has before the next one is tried beside it (RFC 8305).
  static constexpr Duration kPace = std::chrono::milliseconds(250);

  // `done` is called once, from the loop and never from in here; it may destroy the dialer. Errors:
  // kUnavailable (every address has failed, or nothing came of any until the deadline),
  // kResourceExhausted. REQUIRES: !addresses.empty()
  Dialer(EventLoop* loop, std::vector<SocketAddress> addresses, Duration pace, Instant deadline,
         Done done);
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;
  ~Dialer();  // gives up without a word

 private:
  class Runner;
  void on_timer();
  void start_next();
  void on_ready(Runner* runner);
  void failed(const Status& why);
  void finish(Result<Connection> result);

  EventLoop* const loop_;
  const std::vector<SocketAddress> addresses_;
  const Duration pace_;
  const Instant began_;
  const Instant deadline_;
  Done done_;
  std::size_t started_ = 0;
  Status last_error_;
  std::vector<std::unique_ptr<Runner>> runners_;  // the oldest first
  EventLoop::Timer timer_;
};

}  // namespace elastic::os
