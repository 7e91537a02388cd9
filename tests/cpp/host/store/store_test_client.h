#pragma once

// A raw client of the store's protocol for tests: it sends arbitrary bytes and reads with a
// deadline. On a thread with a LoopGroup it turns that while it waits.

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/store/wire.h"
#include "os/base/fd.h"
#include "os/net/address.h"
#include "support/loop_group.h"

namespace elastic::host {

class TestClient {
 public:
  explicit TestClient(std::uint16_t port, const char* host = "127.0.0.1")
      : TestClient(make_socket(host), port, host) {}

  // Connects an existing socket, for tests that run out of descriptors.
  TestClient(os::UniqueFd fd, std::uint16_t port, const char* host = "127.0.0.1")
      : fd_(std::move(fd)) {
    const auto addresses = os::look_up(host, port);
    EXPECT_TRUE(addresses.ok());
    const os::SocketAddress& address = addresses->front();
    error_ = ::connect(fd_.get(), address.get(), address.size) == 0 ? 0 : errno;
  }

  static os::UniqueFd make_socket(const char* host = "127.0.0.1") {
    const int family = os::look_up(host, 0)->front().family();
    os::UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval deadline{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof deadline);
    const int one = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
  }

  // Other threads, which know no virtual time, do a part of the peer's work.
  static inline bool waits_for_threads = false;

  int connect_error() const { return error_; }
  int fd() const { return fd_.get(); }

  // False: the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      wait_for(POLLOUT);
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), send_flags());
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Exactly `size` bytes; fewer if the connection ends earlier.
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
      wait_for(POLLIN);
      const ssize_t more = ::recv(fd_.get(), bytes.data() + got, size - got, 0);
      EXPECT_TRUE(more >= 0 || errno == ECONNRESET) << "nothing was received before the deadline";
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    bytes.resize(got);
    return bytes;
  }

  // The bytes of one recv.
  std::string receive_some() {
    std::string bytes(1 << 20, '\0');
    wait_for(POLLIN);
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

  // True when the server closes the connection before it sends anything.
  bool is_closed() { return receive(1).empty(); }

  void validate() {
    std::string frame;
    wire::append_validate(&frame);
    send(frame);
  }
  // True if the next bytes are the reply to this PING.
  bool ping() {
    std::string frame;
    wire::append_ping(&frame, 0x676e6970);
    return send(frame) && receive(4) == "ping";
  }
  bool set(std::string_view key, std::string_view value) { return send(set_frame(key, value)); }
  std::string get(std::string_view key) {
    send(key_frame(wire::Opcode::kGet, key));
    const std::string length = receive(8);
    if (length.size() < 8) return "(closed)";
    return receive(wire::load_integer<std::uint64_t>(length.data()));
  }
  std::int64_t num_keys() {
    std::string frame;
    wire::append_bare_request(&frame, wire::Opcode::kNumKeys);
    send(frame);
    const std::string reply = receive(8);
    return reply.size() < 8 ? -1 : wire::load_integer<std::int64_t>(reply.data());
  }

  // The connection ends with a reset instead of an orderly close.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    fd_.reset();
  }
  void close() { fd_.reset(); }

  static std::string set_frame(std::string_view key, std::string_view value) {
    std::string frame;
    wire::append_key_value_request(&frame, wire::Opcode::kSet, key, value);
    return frame;
  }
  static std::string key_frame(wire::Opcode opcode, std::string_view key) {
    std::string frame;
    wire::append_key_request(&frame, opcode, key);
    return frame;
  }
  static std::string list_frame(wire::Opcode opcode, const std::vector<std::string>& keys) {
    std::string frame;
    wire::append_list_header(&frame, opcode, keys.size());
    for (const std::string& key : keys) wire::append_bytes(&frame, key);
    return frame;
  }
  static std::string number_frame(wire::Opcode opcode, std::string_view key, std::int64_t number) {
    std::string frame;
    wire::append_number_request(&frame, opcode, key, number);
    return frame;
  }

 private:
  void wait_for(short events) const {
    auto* const group = support::LoopGroup::current();
    if (group == nullptr) return;
    const auto is_ready = [&] {
      pollfd item{fd_.get(), events, 0};
      return ::poll(&item, 1, 0) > 0;
    };
    if (!waits_for_threads) {
      EXPECT_TRUE(group->run_until(is_ready)) << "the peer does nothing any more";
      return;
    }
    const auto turns = [&] {
      if (!is_ready()) group->advance(std::chrono::milliseconds(20));
      return is_ready();
    };
    EXPECT_TRUE(group->await(turns)) << "the peer does nothing any more";
  }
  static int send_flags() {
    const bool is_alone = support::LoopGroup::current() != nullptr;
    return MSG_NOSIGNAL | (is_alone ? MSG_DONTWAIT : 0);
  }

  os::UniqueFd fd_;
  int error_ = 0;
};

}  // namespace elastic::host
