#pragma once

// A raw client of the session protocol for tests: it sends valid or invalid data, and waits with a
// deadline for the messages that it expects.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/session/session_wire.h"
#include "host/store/store_test_client.h"

namespace elastic::host {

// A round as one of its members holds it.
inline core::HeldRound held(std::uint64_t round, int nodes, int group_rank) {
  core::HeldRound held;
  held.record.round = round;
  held.record.nodes = nodes;
  held.record.world_size = nodes;
  held.record.master_addr = "127.0.0.1";
  held.group_rank = group_rank;
  return held;
}

// These settings leave a client time on a slow machine: it sends no heartbeats by itself, and the
// first round begins with max_nodes, however late the last one joins.
inline JobSettings nnodes(int min_nodes, int max_nodes) {
  JobSettings settings;
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.last_call_timeout = std::chrono::minutes(2);
  settings.node_timeout = std::chrono::minutes(2);
  return settings;
}

class SessionClient {
 public:
  // Connects and identifies the coordinator; sends no hello.
  explicit SessionClient(std::uint16_t port, const char* host = "127.0.0.1")
      : SessionClient(TestClient(port, host)) {}
  explicit SessionClient(TestClient client) : client_(std::move(client)) {
    EXPECT_EQ(client_.connect_error(), 0);
    EXPECT_TRUE(find_coordinator(&client_));
  }
  // The same, then sends a hello.
  SessionClient(std::uint16_t port, std::uint64_t node, const std::string& job = "job")
      : SessionClient(port) {
    be(node);
    greet(job);
  }
  virtual ~SessionClient() = default;
  void be(std::uint64_t node) {
    info.id = {1, node};
    secret = {node, 7};
    info.name = std::string("127.0.0.1_") + std::to_string(node) + "_0";
    info.address = "127.0.0.1";
    info.store_port = static_cast<std::uint16_t>(20000 + node);
  }

  static bool find_coordinator(TestClient* client) {
    client->validate();
    return client->ping() &&
           client->send(TestClient::list_frame(wire::Opcode::kCheck,
                                               {std::string(session::kReservedKey)})) &&
           client->receive(1) == std::string(1, wire::kReady);
  }

  void greet(const std::string& job) {
    say_first({.job_id = job, .node = info.id, .secret = secret, .attempt = ++hellos_});
  }
  static std::string first_bytes(const session::ClientHello& hello) {
    std::string bytes(session::kMagic);
    session::append(&bytes, session::ClientMessage(hello));
    return bytes;
  }
  void say_first(const session::ClientHello& hello) { EXPECT_TRUE(write(first_bytes(hello))); }

  bool send_message(const session::ClientMessage& message) {
    std::string bytes;
    session::append(&bytes, message);
    return write(bytes);
  }
  bool join(const JobSettings& settings) { return send_message(rdzv::Join{info, settings}); }
  bool resume(const JobSettings& settings, rdzv::NodePhase phase,
              std::optional<core::HeldRound> last = std::nullopt) {
    return send_message(rdzv::Resume{info, settings, phase, std::move(last), std::nullopt});
  }

  // The next message; nullopt: the session was closed.
  std::optional<session::ServerMessage> receive() {
    while (true) {
      session::ServerMessage message;
      const session::DecodeResult decoded = session::decode(buffer_, &message);
      EXPECT_NE(decoded.status, session::DecodeStatus::kViolation) << decoded.error.message();
      if (decoded.status == session::DecodeStatus::kMessage) {
        buffer_.erase(0, decoded.bytes);
        return message;
      }
      const std::string more = read();
      if (more.empty()) return std::nullopt;
      buffer_ += more;
    }
  }

  // Receives until a message of this kind arrives; fails if the session ends before.
  template <typename Message>
  Message expect() {
    while (auto message = receive()) {
      if (auto* found = std::get_if<Message>(&*message)) return std::move(*found);
    }
    ADD_FAILURE() << "the session ended before the expected message";
    if constexpr (std::is_same_v<Message, rdzv::Round>) {
      return {{}, std::make_shared<const RoundRecord>(), {}};
    } else if constexpr (std::is_same_v<Message, rdzv::Closed>) {
      return {{}, std::make_shared<const JobResult>()};
    } else {
      return {};
    }
  }
  // The next message, if it is of this kind.
  template <typename Message>
  std::optional<Message> receive_one() {
    const auto message = receive();
    const auto* found = message ? std::get_if<Message>(&*message) : nullptr;
    return found == nullptr ? std::nullopt : std::optional<Message>(*found);
  }
  // True if a message of this kind arrives before the answer to a heartbeat, which follows every
  // message that the coordinator has sent so far.
  template <typename Message>
  bool receives() {
    send_message(session::Heartbeat{Instant(Duration(++heartbeats_))});
    bool found = false;
    while (auto message = receive()) {
      if (std::holds_alternative<Message>(*message)) found = true;
      const auto* reply = std::get_if<session::HeartbeatReply>(&*message);
      if (reply != nullptr && reply->sent == Instant(Duration(heartbeats_))) return found;
    }
    ADD_FAILURE() << "the session ended";
    return found;
  }
  // The session was closed, and nothing was sent before but the job's timings.
  bool is_closed() {
    while (auto message = receive()) {
      if (!std::holds_alternative<session::Timings>(*message)) return false;
    }
    return true;
  }

  TestClient& raw() { return client_; }
  core::NodeInfo info;
  session::NodeSecret secret;

 protected:
  virtual bool write(const std::string& bytes) { return client_.send(bytes); }
  // "": the connection has ended.
  virtual std::string read() { return client_.receive_some(); }

 private:
  TestClient client_;
  std::string buffer_;
  std::int64_t heartbeats_ = 0;
  static inline std::uint64_t hellos_ = 0;  // over all clients, so that each hello has a new number
};

}  // namespace elastic::host
