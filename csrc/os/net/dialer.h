#pragma once

// Connecting to a TCP server: the two steps of a non-blocking connect, between which the caller
// waits in poll(2) (StreamSocket) or on a loop (Dialer).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/loop/registration.h"
#include "os/net/address.h"

namespace elastic::os {

// Begins to connect. The socket is non-blocking, does not delay small segments, and probes a silent
// peer. When it is writable, call finish_connecting(). Errors: kUnavailable (refused at once, no
// route), kResourceExhausted.
Result<UniqueFd> start_connecting(const SocketAddress& address);

// The errno of the result; ECONNREFUSED also for a socket that is connected to itself.
int connect_result(int fd);

// Returns the result: kUnavailable names the address and the cause. Close a failed socket.
Status finish_connecting(int fd, const SocketAddress& address);

// Whether the peer's host answered that nothing listens there.
bool is_refusal(const Status& status);

// For a connection with few small messages, such as heartbeats: it breaks if sent bytes are not
// acknowledged within `silence_max`, and lost segments are repeated at constant intervals if the
// kernel supports it.
void expect_liveness(int fd, Duration silence_max);

// kUnavailable for every error of a connection, except kResourceExhausted for a lack of our own.
Status connection_error(std::string_view context, int error);

// Connects to one of several addresses from a loop.
//
// Loop thread only. Each address is tried some time after the previous one. Then all of them are
// tried again repeatedly, in parallel with attempts that have no result yet: the kernel repeats a
// lost SYN at growing intervals, and a new attempt finds a repaired path sooner.
class Dialer {
 public:
  struct Connection {
    UniqueFd fd;
    SocketAddress peer;
  };
  using Done = std::function<void(Result<Connection>)>;

  // The delay before the next address is tried in parallel (RFC 8305).
  static constexpr Duration kPace = std::chrono::milliseconds(250);

  // `done` is called once, from the loop and never from this constructor; it may destroy the
  // dialer. Errors: kUnavailable (every address failed, or the deadline passed),
  // kResourceExhausted. REQUIRES: !addresses.empty()
  Dialer(EventLoop* loop, std::vector<SocketAddress> addresses, Duration pace, Instant deadline,
         Done done);
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;
  ~Dialer();  // cancels; `done` is not called

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
  Timer timer_;
};

}  // namespace elastic::os
