#pragma once

// One connection with a coordinator, from the hello on: frames out, messages in.
//
// Loop thread only. The messages of one iteration are sent in one segment at its end.

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
    // Called once, as the last callback. kPeerViolation: invalid data was received.
    std::function<void(const Status&)> on_lost;
  };

  // `connection`: to a coordinator that has identified itself. `group` outlives the link.
  static Result<std::unique_ptr<SessionLink>> open(os::StreamGroup* group,
                                                   os::DetachedStream connection, Sink sink);
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;
  ~SessionLink() = default;

  void send(const session::ClientMessage& message);
  // Sends at once as much as the socket accepts; the rest follows when it is writable. A broken
  // connection is reported later.
  void flush() { stream_.flush(); }
  void close() { stream_.close(); }
  // The local end, as a numeric address.
  const std::string& local_address() const { return local_address_; }
  bool is_loopback() const { return is_loopback_; }
  // Zero: unknown, or the connection has ended.
  Duration round_trip() const {
    return stream_.is_open() ? stream_.round_trip() : Duration::zero();
  }

  std::size_t on_bytes(std::string_view bytes) override;
  void on_end(os::Stream::End why, int error) override;

 private:
  SessionLink(os::StreamGroup* group, Sink sink) : sink_(std::move(sink)), stream_(group, this) {}

  const Sink sink_;
  std::string local_address_;
  bool is_loopback_ = false;
  bool was_hello_sent_ = false;
  std::uint16_t peer_version_ = session::kVersion;
  os::Stream stream_;  // last: its handler uses the other members
};

}  // namespace elastic::host
