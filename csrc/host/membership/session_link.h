#pragma once

// One connection with a coordinator, from the hello on: frames out, messages in.
//
// Loop thread only. What is sent in one iteration leaves in one segment at its end.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/session/session_wire.h"
#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class SessionLink final : public os::EventLoop::FdHandler {
 public:
  // Both are called from the loop; they may close() the link and must not destroy it.
  struct Sink {
    std::function<void(const session::ServerMessage&)> on_message;
    // Once, and nothing follows. kPeerViolation: what came is no message of this protocol.
    std::function<void(const Status&)> on_lost;
  };

  // `fd`: connected to a coordinator that has said so.
  static Result<std::unique_ptr<SessionLink>> open(os::EventLoop* loop, os::UniqueFd fd, Sink sink);
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;
  ~SessionLink() override = default;

  void send(const session::ClientMessage& message);
  // Sends now what the socket takes; the rest goes when it can. A broken connection is told later.
  void flush();
  void close();
  // The local end, as a numeric address.
  const std::string& local_address() const { return local_address_; }
  bool is_loopback() const { return is_loopback_; }

  void on_ready(std::uint32_t events) override;

 private:
  SessionLink(os::EventLoop* loop, os::UniqueFd fd, Sink sink);
  void serve(std::string_view bytes);
  void lost(const Status& why);

  const Sink sink_;
  os::UniqueFd fd_;
  std::string local_address_;
  bool is_loopback_ = false;
  bool was_hello_sent_ = false;
  std::string input_;   // the beginning of a frame that has not arrived whole
  std::string output_;  // what the socket has not taken
  bool is_writing_ = false;
  os::EventLoop* const loop_;
  os::EventLoop::Timer flush_timer_;
  os::EventLoop::Watch watch_;  // behind what its handler uses
};

}  // namespace elastic::host
