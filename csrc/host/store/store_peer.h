#pragma once

// One client of a store server: bytes from its socket to the table, replies back.
//
// Loop thread only. A connection never destroys itself: at the end of the iteration in which its
// stream closed, it asks the service, which owns it, to remove it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/store/store.h"
#include "core/store/wire.h"
#include "elastic/status.h"
#include "elastic/store_options.h"
#include "elastic/store_server.h"
#include "host/base/pending_connections.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/stream.h"

namespace elastic::host {

class StorePeer;

// Written by the loop thread only, read by any thread. Atomics, so that a reader never blocks the
// loop.
class Counter {
 public:
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::uint64_t more) { set(get() + more); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

// Shared by the connections of one service.
struct StoreContext {
  // `on_pending`: see os::StreamGroup.
  StoreContext(os::EventLoop* loop, const StoreLimits& store_limits, std::uint64_t seed,
               std::function<void()> on_pending);

  os::EventLoop& loop;
  const StoreLimits limits;
  MemoryBudget budget;
  StoreTable table;
  os::StreamGroup streams;
  PendingConnections pending;                 // connections that have not sent VALIDATE
  std::vector<StoreTable::Waiter*> released;  // scratch space of the current turn

  std::function<void(StorePeer*)> on_closed;  // removes the connection
  std::optional<Instant> first_client;        // when the first one has sent VALIDATE
  std::optional<Instant> last_key;            // when the number of keys has changed last
  Counter connections, connections_total, connections_rejected, requests, keys, bytes;
  // For a store that shares its port with a coordinator: takes over the socket of a connection that
  // has begun the session protocol (core/session/session_wire.h), and the bytes that were read from
  // it. Called inside that connection's handler. Empty: no coordinator.
  std::function<void(os::DetachedStream connection)> on_session;
  bool needs_token = false;  // sessions begin with a TLS handshake
  // Who may use the store, and what is called with the address of a client that may not. Empty:
  // every client may.
  std::function<bool(const os::SocketAddress& remote, const os::SocketAddress& local)> may_use;
  std::function<void(const std::string& host)> on_refused;

  // Updates the counters that come from the table and the budget.
  void publish() {
    if (table.num_keys() != keys.get()) last_key = loop.now();
    keys.set(table.num_keys());
    bytes.set(budget.used());
  }
};

// The limit of pending connections of one address (StoreLimits::pending_per_address_max).
std::size_t pending_per_address(const StoreLimits& limits);

class StorePeer final : public os::Stream::Handler, public StoreTable::Waiter {
 public:
  // `context` outlives the connection.
  static Result<std::unique_ptr<StorePeer>> create(StoreContext* context, os::UniqueFd fd,
                                                   const os::SocketAddress& remote);
  StorePeer(const StorePeer&) = delete;
  StorePeer& operator=(const StorePeer&) = delete;
  ~StorePeer() = default;

  // Handles the requests received so far, then closes.
  void drain() { stream_.close_when_drained(); }

  std::size_t index = 0;  // in the service's list

  std::size_t on_bytes(std::string_view bytes) override;
  void on_turn_end() override { context_.publish(); }
  void on_end(os::Stream::End why, int error) override;
  void on_closed() override { context_.on_closed(this); }

 private:
  explicit StorePeer(StoreContext* context)
      : context_(*context), decoder_(context->limits), stream_(&context->streams, this) {}

  bool is_check_of(std::string_view key, const wire::Request& request) const;
  bool begins_session(char first) const;
  bool may_serve(const wire::Request& request);
  void hand_over(std::string_view unread);
  void release_others();
  void reject();

  StoreContext& context_;
  std::unique_ptr<PendingConnections::Ticket> pending_;  // until VALIDATE, inside of the fence
  bool found_coordinator_ = false;                       // it has checked, and may begin a session
  bool is_fenced_ = false;                               // only a session may begin here
  wire::RequestDecoder decoder_;
  os::Stream stream_;  // declared last: destroyed before the members that its handler uses
};

}  // namespace elastic::host
