#pragma once

// A key-value store behind a listening socket, on somebody else's loop.
//
// StoreServer wraps it with a thread of its own; an agent opens one for each round on its loop.
// Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "elastic/status.h"
#include "elastic/store_server.h"
#include "os/loop/event_loop.h"
#include "os/net/stream.h"

namespace elastic::host {

class StoreService {
 public:
  // Binds and listens; see StoreServer::start for the errors. `loop` outlives the service. Names
  // are looked up here, before anything is served, and never again.
  static Result<std::unique_ptr<StoreService>> open(os::EventLoop* loop,
                                                    const StoreServerOptions& options);

  // Takes a connection that has begun a session with a coordinator; its unread bytes begin with the
  // magic. Called from inside of the connection's handler.
  using SessionSink = std::function<void(os::DetachedStream connection)>;
  // Makes this the store beside a coordinator: it says so to whoever asks.
  void accept_sessions(SessionSink sink);

  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;
  ~StoreService();  // closes every connection

  std::uint16_t port() const;
  const std::string& host() const;
  StoreServerStats stats() const;

  // Cuts every connection, also those that wait to be accepted, and forgets every key; the
  // listening socket stays. For rounds that must keep their port. Not from inside a connection's
  // handler.
  void reset();
  // Stops accepting, finishes what has arrived for at most `drain`, closes, then calls `done` from
  // the loop; it may destroy the service. A service that is destroyed before does not call it.
  void drain(Duration drain, std::function<void()> done);

 private:
  class Impl;
  explicit StoreService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic::host
