#pragma once

// The workers' store of each round: hosting it, and whether this node's workers can reach it. Loop
// thread only.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "host/base/admission.h"
#include "host/store/store_service.h"
#include "os/loop/registration.h"
#include "os/net/address.h"
#include "os/net/dialer.h"
#include "os/net/listener.h"

namespace elastic::host {

struct RoundStoreOptions {
  std::uint16_t fixed_port = 0;  // 0: a different port for every round
  PortRange ports;               // the range of those ports
  bool is_shared = true;         // false: only reserve the port; a worker runs the store
  StoreLimits limits;
  // The store serves only addresses that were allowed for its round, and this host.
  bool is_fenced = false;
  // With a fence: receives log lines about other clients.
  std::function<void(std::string_view)> log = {};
};

// The stores that this node may have to host.
//
// A port is bound before the node joins a round, so that the round's record can contain it; it is
// used if this node becomes rank 0. Each round has a new, empty store.
class RoundStore {
 public:
  // `loop` outlives the store.
  RoundStore(os::EventLoop* loop, const RoundStoreOptions& options);

  // Binds a port on `host` ("": every interface) for the case that this node is rank 0 of the next
  // round, unless that was done since the last round began. Returns the port.
  Result<std::uint16_t> prepare(const std::string& host);
  // Clients at these addresses may use the store of the round that begins next.
  void allow(std::uint64_t round, const std::vector<std::string>& addresses);
  // A round has begun; if rank 0 is here, it uses the prepared store.
  void begin_round(bool is_here);
  // All workers of the round have ended on all nodes: its store closes a second from now.
  void end_round();
  // This node hosts a round's store, and its workers may still need it.
  bool is_needed() const { return is_needed_; }
  // When the first client of the round connected to the store that this node hosts.
  std::optional<Instant> first_client() const;
  std::optional<Instant> last_key() const;
  void close();

 private:
  struct OpenPort {
    std::uint16_t port = 0;  // 0: none
    std::unique_ptr<StoreService> service;
    os::ReservedPort hold;
  };
  struct Retired {
    Instant close_at;
    OpenPort opened;
  };

  Result<OpenPort> open(const std::string& host, std::uint16_t port) const;
  OpenPort reuse_current();
  Result<OpenPort> open_in_range(const std::string& host);
  void open_fence();
  void retire_current();
  void close_retired();

  os::EventLoop* const loop_;
  const RoundStoreOptions options_;
  OpenPort next_;
  OpenPort current_;
  bool is_needed_ = false;
  std::uint64_t allowed_round_ = 0;  // of allowed_
  std::set<std::string> allowed_;
  RefusalLog refusals_;
  std::deque<Retired> retired_;      // ordered by close_at
  std::uint32_t next_in_range_ = 0;  // where the search for a free port begins
  os::Timer close_timer_;
};

// Tests whether the workers of this node can reach the store of their round.
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
  os::Timer retry_;
};

}  // namespace elastic::host
