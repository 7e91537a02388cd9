#pragma once

// A key-value store behind a listening socket, on the loop of its owner.
//
// StoreServer runs it on a separate thread; an agent opens one for each round on its own loop. Loop
// thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/status.h"
#include "elastic/store_server.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/stream.h"

namespace elastic::host {

class StoreService {
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
  void accept_sessions(SessionSink sink, bool needs_token = false);

  // Whether the client at `remote`, connected to `local`, may use the store.
  using Fence =
      std::function<bool(const os::SocketAddress& remote, const os::SocketAddress& local)>;
  // From now on only clients that the fence allows are served; `on_refused` is called with the
  // address of another one. Such a client may begin a session; until then it counts as one that
  // has sent nothing.
  void fence(Fence may_use, std::function<void(const std::string& host)> on_refused);
  // Accepts no connection until release(): clients wait in the kernel's queue.
  void hold();
  void release();

  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;
  ~StoreService();  // closes every connection

  std::uint16_t port() const;
  const std::string& host() const;
  StoreServerStats stats() const;
  // When the first connection since the last reset was accepted.
  std::optional<Instant> first_client() const;
  // When the number of keys changed last since then.
  std::optional<Instant> last_key() const;

  // Closes every connection, including those that wait to be accepted, and removes every key; the
  // listening socket remains. For rounds that must keep their port. Must not be called inside a
  // connection's handler.
  void reset();
  // Stops accepting, handles received requests for at most `drain`, closes, then calls `done` from
  // the loop; `done` may destroy the service. It is not called if the service is destroyed before.
  void drain(Duration drain, std::function<void()> done);

 private:
  class Impl;
  explicit StoreService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
