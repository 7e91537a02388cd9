#pragma once

// A key-value store behind a listening socket, on the loop of its owner.
//
// StoreServer runs it on a separate thread; an agent opens one for each round on its own loop. Loop
// thread only.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/store/store.h"
#include "core/store/wire.h"
#include "elastic/status.h"
#include "elastic/store_server.h"
#include "host/base/admission.h"
#include "host/base/memory_return.h"
#include "os/loop/registration.h"
#include "os/net/address.h"
#include "os/net/listener.h"
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
  void publish();
};

// The limit of pending connections of one address (StoreLimits::pending_per_address_max).
std::size_t pending_per_address(const StoreLimits& limits);
// The limit of sessions of all addresses that have not sent their hello, if a token is needed. With
// the store's pending clients they use at most a quarter of the descriptors.
std::size_t handshakes_max(const StoreLimits& limits);

// One client: bytes from its socket to the table, replies back. It never destroys itself: at the
// end of the iteration in which its stream closed, it asks the service, which owns it, to remove
// it.
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

class StoreService final : private os::FdHandler {
 public:
  // Binds and listens; see StoreServer::start for the errors. `loop` outlives the service. A name
  // is resolved here only.
  static Result<std::unique_ptr<StoreService>> open(os::EventLoop* loop,
                                                    const StoreServerOptions& options);

  // Takes over a connection that has begun a session with a coordinator; its unread bytes begin
  // with the magic. Called inside the connection's handler.
  using SessionSink = std::function<void(os::DetachedStream connection)>;
  // Declares that a coordinator shares this port: a client's check for it succeeds. With
  // `needs_token` a session begins with a TLS handshake.
  void accept_sessions(SessionSink sink, bool needs_token = false) {
    context_.on_session = std::move(sink);
    context_.needs_token = needs_token;
  }

  // Whether the client at `remote`, connected to `local`, may use the store.
  using Fence =
      std::function<bool(const os::SocketAddress& remote, const os::SocketAddress& local)>;
  // From now on only clients that the fence allows are served; `on_refused` is called with the
  // address of another one. Such a client may begin a session; until then it counts as one that
  // has sent nothing, and the number of such clients of all addresses is limited.
  void fence(Fence may_use, std::function<void(const std::string& host)> on_refused);
  // Accepts no connection until resume_accepting(): clients wait in the kernel's queue.
  void pause_accepting();
  void resume_accepting();

  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;
  ~StoreService() override;  // closes every connection

  std::uint16_t port() const { return port_; }
  const std::string& host() const { return host_; }
  StoreServerStats stats() const;
  // When the first connection since the last reset was accepted.
  std::optional<Instant> first_client() const { return context_.first_client; }
  // When the number of keys changed last since then.
  std::optional<Instant> last_key() const { return context_.last_key; }

  // Closes every connection, including those that wait to be accepted, and removes every key; the
  // listening socket remains. For rounds that must keep their port. Must not be called inside a
  // connection's handler.
  void reset();
  // Stops accepting, handles received requests for at most `drain`, closes, then calls `done` from
  // the loop; `done` may destroy the service. It is not called if the service is destroyed before.
  void drain(Duration drain, std::function<void()> done);

 private:
  StoreService(os::EventLoop* loop, os::Listener listener, const StoreLimits& limits);
  void on_ready(std::uint32_t) override { accept_some(); }
  os::Listener::AcceptStatus accept_one();
  void accept_some();
  void watch_listener();
  void process_pending();
  void remove(StorePeer* connection);
  void cut_all();
  void finish_drain();
  void publish();
  std::size_t bytes_held() const;

  os::EventLoop& loop_;
  StoreContext context_;
  os::Listener listener_;
  const std::string host_;
  const std::uint16_t port_;
  std::vector<std::unique_ptr<StorePeer>> connections_;
  bool draining_ = false;
  bool is_paused_ = false;                             // by pause_accepting()
  std::shared_ptr<std::function<void()>> on_drained_;  // see finish_drain()
  MemoryReturn memory_return_;
  os::Timer accept_timer_;  // armed while accepting pauses
  os::Timer drain_timer_;
  os::Watch listener_watch_;
};

}  // namespace elastic::host
