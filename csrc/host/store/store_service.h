#pragma once

// A key-value store behind a listening socket, on the loop of its owner.
//
// StoreServer runs it on a separate thread; an agent opens one for each round on its own loop. Loop
// thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/status.h"
#include "elastic/store_server.h"
#include "host/base/memory_return.h"
#include "host/store/store_peer.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/listener.h"
#include "os/net/stream.h"

namespace elastic::host {

class StoreService final : private os::EventLoop::FdHandler {
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
  // has sent nothing.
  void fence(Fence may_use, std::function<void(const std::string& host)> on_refused) {
    context_.may_use = std::move(may_use);
    context_.on_refused = std::move(on_refused);
  }
  // Accepts no connection until release(): clients wait in the kernel's queue.
  void hold();
  void release();

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
  void resume_accepting();
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
  bool is_held_ = false;
  std::shared_ptr<std::function<void()>> on_drained_;  // see finish_drain()
  MemoryReturn memory_return_;
  os::EventLoop::Timer accept_timer_;  // armed while accepting pauses
  os::EventLoop::Timer drain_timer_;
  os::EventLoop::Watch listener_watch_;
};

}  // namespace elastic::host
