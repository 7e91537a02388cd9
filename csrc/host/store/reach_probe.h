#pragma once

// Tests whether the workers of this node can reach the store of their round.
//
// Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "elastic/time.h"
#include "os/loop/event_loop.h"
#include "os/net/dialer.h"
#include "os/net/name_lookup.h"

namespace elastic::host {

class ReachProbe {
 public:
  // `why`: the last error, one clause.
  using Failed = std::function<void(const std::string& why)>;

  explicit ReachProbe(os::EventLoop* loop);

  // Connects to the address, again and again until `limit` has passed, and closes the connection.
  // `failed` is called from the loop, once, if none was made. A name that is not resolved is not
  // judged: the workers report that themselves.
  void begin(const std::string& host, std::uint16_t port, Duration limit, Failed failed);
  void cancel();

 private:
  void dial();
  void on_result(const Status& result);

  os::EventLoop* const loop_;
  Failed failed_;
  Instant deadline_;
  std::vector<os::SocketAddress> addresses_;
  std::unique_ptr<os::NameLookup> lookup_;
  std::unique_ptr<os::Dialer> dialer_;
  os::EventLoop::Timer retry_;
};

}  // namespace elastic::host
