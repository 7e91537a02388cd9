#pragma once

// One connection with a coordinator, from the hello on: frames out, messages in.
//
// Loop thread only. What is sent in one iteration leaves in one segment at its end.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/session/session_wire.h"
#include "elastic/status.h"
#include "os/net/stream.h"

namespace elastic::host {

class SessionLink final : public os::Stream::Handler {
 public:
  // Both are called from the loop; they may close() the link and must not destroy it.
  struct Sink {
    std::function<void(const session::ServerMessage&)> on_message;
    // Once, and nothing follows. kPeerViolation: what came is no message of this protocol.
    std::function<void(const Status&)> on_lost;
  };

  // `connection`: to a coordinator that has identified itself. `group` outlives the link.
  static Result<std::unique_ptr<SessionLink>> open(os::StreamGroup* group,
                                                   os::DetachedStream connection, Sink sink);
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;
  ~SessionLink() = default;

  void send(const session::ClientMessage& message);
  // Sends now what the socket takes; the rest goes when it can. A broken connection is told later.
  void flush() { stream_.flush(); }
  void close() { stream_.close(); }
  // The local end, as a numeric address.
  const std::string& local_address() const { return local_address_; }
  bool is_loopback() const { return is_loopback_; }

  std::size_t on_bytes(std::string_view bytes) override;
  void on_end(os::Stream::End why, int error) override;

 private:
  SessionLink(os::StreamGroup* group, Sink sink) : sink_(std::move(sink)), stream_(group, this) {}

  const Sink sink_;
  std::string local_address_;
  bool is_loopback_ = false;
  bool was_hello_sent_ = false;
  std::uint16_t peer_version_ = session::kVersion;
  os::Stream stream_;  // behind what its handler uses
};

}  // namespace elastic::host
