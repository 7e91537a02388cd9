#pragma once

// One agent's session with a coordinator: frames from its socket to the service, messages back.
//
// Loop thread only. A peer never destroys itself: closed() becomes true, and the service, which
// owns it, is asked by request_settle() to come by at the end of the iteration.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/session/session_wire.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"
#include "os/net/address.h"

namespace elastic::host {

class CoordinatorJob;
class SessionPeer;

// What the sessions of one coordinator share.
struct SessionContext {
  SessionContext(Duration hello, std::size_t output_max, std::size_t total_max)
      : hello_timeout(hello),
        output_bytes_max(output_max),
        budget(total_max),
        received(std::make_unique<char[]>(kReceiveBytes)) {}

  static constexpr std::size_t kReceiveBytes = 64 << 10;  // a turn reads this much

  // Told what a session says. An error ends the session, and is told to the client.
  std::function<Status(SessionPeer* peer, session::ClientMessage& message)> on_message;
  std::function<void()> on_unsettled;  // called when the first of `unsettled` is added

  const Duration hello_timeout;
  const std::size_t output_bytes_max;
  MemoryBudget budget;  // for what waits in buffers
  const std::unique_ptr<char[]> received;
  session::ClientMessage message;  // scratch of the turn that is being served
  std::vector<SessionPeer*> unsettled;
};

class SessionPeer final : public os::EventLoop::FdHandler {
 public:
  // Takes a connection over that has read `unread`, from the magic on. It is served at the end of
  // the iteration. `context` and `loop` outlive the peer.
  static Result<std::unique_ptr<SessionPeer>> create(SessionContext* context, os::EventLoop* loop,
                                                     os::UniqueFd fd, std::string_view unread);
  SessionPeer(const SessionPeer&) = delete;
  SessionPeer& operator=(const SessionPeer&) = delete;
  ~SessionPeer() override;

  // A turn: reads once, and serves what has arrived.
  void on_ready(std::uint32_t events) override;
  // The end of an iteration in which this asked for it: serves what came with the connection, and
  // sends what is due.
  void settle();

  // Sent at the end of the iteration. A session that does not read is closed.
  void send(const session::ServerMessage& message);
  // Who the client is has been said.
  void accept() { patience_.disarm(); }
  // The last message: refuses, then waits a moment for the client to close.
  void finish(const Status& error);
  void close();
  bool closed() const { return !fd_.valid(); }
  bool has_unsent() const { return sent_ < output_.size(); }

  // A peer that does not acknowledge for so long is gone.
  void set_user_timeout(Duration timeout);

  const os::SocketAddress& local() const { return local_; }
  const os::SocketAddress& remote() const { return remote_; }
  // The client runs on this host, as far as the addresses tell.
  bool is_from_this_host() const;

  // The service's: who this is.
  CoordinatorJob* job = nullptr;  // null before the hello, and after a newer session took over
  NodeId node;
  std::string name;         // of the node, once it has joined
  bool has_joined = false;  // it said Join or Resume, and not Leave since
  // Its last join, as long as the address in it means nothing to other hosts.
  std::unique_ptr<rdzv::Join> loopback_join;
  std::size_t index = 0;  // in the service's list

 private:
  SessionPeer(SessionContext* context, os::EventLoop* loop, os::UniqueFd fd,
              std::string_view unread);

  void receive();
  void serve_input();
  std::size_t serve(std::string_view bytes);
  bool take_magic(std::string_view bytes, std::size_t* used);
  void flush();
  void finish_turn();
  void request_settle();
  bool charge();

  SessionContext& context_;
  os::EventLoop& loop_;
  os::UniqueFd fd_;
  const os::SocketAddress local_, remote_;
  std::uint32_t interest_ = 0;
  std::string input_;        // the frame that has not arrived whole
  std::string output_;       // messages that are still to be sent
  std::size_t sent_ = 0;     // bytes of output_ that the socket has
  std::size_t charged_ = 0;  // taken from the budget for the two
  bool has_magic_ = false;
  bool finishing_ = false;
  bool settle_requested_ = false;
  os::EventLoop::Timer patience_;  // with a client that does not say who it is, or does not go
  os::EventLoop::Watch watch_;     // behind what its handler uses
};

}  // namespace elastic::host
