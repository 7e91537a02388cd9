#pragma once

// The observers of a job with one node: their sessions at a Unix-domain socket of this host.
//
// It serves what a coordinator serves observers, and no nodes. Until the first of them connects it
// is a listening socket only. Loop thread only.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/session/session_wire.h"
#include "elastic/status.h"
#include "host/base/pending_connections.h"
#include "host/coordinator/observer_desk.h"
#include "host/coordinator/session_peer.h"
#include "os/loop/event_loop.h"
#include "os/net/local_socket.h"

namespace elastic::host {

class LocalObservers final : public os::EventLoop::FdHandler {
 public:
  // `loop` and `desk` outlive it.
  static Result<std::unique_ptr<LocalObservers>> open(os::EventLoop* loop, const std::string& path,
                                                      std::string job_id, ObserverDesk* desk);
  LocalObservers(const LocalObservers&) = delete;
  LocalObservers& operator=(const LocalObservers&) = delete;
  ~LocalObservers() override;  // closes the sessions, and removes the socket

  std::uint64_t incarnation() const { return incarnation_; }
  const std::string& path() const { return listener_.path(); }

  void on_ready(std::uint32_t events) override;

 private:
  LocalObservers(os::EventLoop* loop, os::LocalListener listener, std::string job_id,
                 ObserverDesk* desk);
  void adopt(os::UniqueFd connection);
  Status on_message(SessionPeer* peer, const session::ClientMessage& message);
  Status greet(SessionPeer* peer, const session::ClientHello& hello);
  void remove(SessionPeer* peer);

  os::EventLoop& loop_;
  const std::string job_id_;
  ObserverDesk& desk_;
  const std::uint64_t incarnation_;
  os::LocalListener listener_;
  PendingConnections pending_;
  std::unique_ptr<SessionContext> sessions_;  // null: nobody has connected so far
  std::vector<std::unique_ptr<SessionPeer>> peers_;
  os::EventLoop::Timer pause_;  // armed: no descriptor is free for a connection
  os::EventLoop::Watch watch_;
};

}  // namespace elastic::host
