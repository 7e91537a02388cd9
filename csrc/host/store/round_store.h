#pragma once

// The workers' store of one round after another, as far as this node may have to host it.
//
// A port is bound before the node asks for a round, so that the round's record can name it; the
// round whose rank 0 this node is uses it. Each round has a fresh, empty store.
//
// Loop thread only.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "host/store/store_service.h"
#include "os/loop/event_loop.h"
#include "os/net/held_port.h"

namespace elastic::host {

struct RoundStoreOptions {
  std::uint16_t fixed_port = 0;  // 0: another port for every round
  PortRange ports;               // where those come from
  bool is_shared = true;         // false: only hold the port; a worker serves
  StoreLimits limits;
};

class RoundStore {
 public:
  // `loop` outlives the store.
  RoundStore(os::EventLoop* loop, const RoundStoreOptions& options);

  // Binds, on `host` ("": every interface), what the next round needs should it have its rank 0
  // here, unless that has been done since the last one began. Returns the port.
  Result<std::uint16_t> prepare(const std::string& host);
  // A round has begun; with rank 0 here, what was prepared is its store.
  void begin_round(bool is_here);
  // No worker of the round is left anywhere: its store closes a second from now.
  void end_round();
  // A round's store is here and its workers may still need it.
  bool is_needed() const { return is_needed_; }
  void close();

 private:
  struct Place {
    std::uint16_t port = 0;  // 0: none
    std::unique_ptr<StoreService> service;
    os::HeldPort hold;
  };
  struct Retired {
    Instant close_at;
    Place place;
  };

  Result<Place> open(const std::string& host, std::uint16_t port) const;
  Result<Place> open_in_range(const std::string& host);
  void retire_current();
  void close_retired();

  os::EventLoop* const loop_;
  const RoundStoreOptions options_;
  Place next_;
  Place current_;
  bool is_needed_ = false;
  std::deque<Retired> retired_;  // the earliest to close in front
  std::uint32_t last_in_range_ = 0;
  os::EventLoop::Timer retirement_;
};

}  // namespace elastic::host
