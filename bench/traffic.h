#pragma once

// The requests that a load generator sends, in the protocol of the server under test, and how
// their replies are counted. All servers get the same keys (16 bytes and the "/" of PyTorch's
// client) and values (32 bytes).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

enum class Protocol { kTcpStore, kRedis, kEcho };
enum class Kind { kPing, kSet, kGet, kAdd, kCheck };

Protocol protocol_named(const std::string& name);
Kind kind_named(const std::string& name);

// The request that stores a value of 32 bytes under the key.
std::string set_request(Protocol protocol, std::string_view key);

// The requests of one write and their replies.
struct Batch {
  std::string bytes;
  // The size of its replies: in bytes, or, for Redis, whose integers vary in length, in lines.
  std::size_t reply_units = 0;
};

class Traffic {
 public:
  // `pipeline` requests of `kind` in each batch. TCPStore's SET has no reply, so its batches end
  // with one PING.
  Traffic(Protocol protocol, Kind kind, std::size_t pipeline);

  // Connects to the server and performs its protocol's handshake.
  int connect(std::uint16_t port) const;
  // Stores the keys of the requests and checks one reply byte for byte, so that a server that
  // replies incorrectly is not measured.
  void prepare(std::uint16_t port) const;

  // Batches that cover all keys; send them in turn.
  const std::vector<Batch>& batches() const { return batches_; }
  std::size_t count_units(std::string_view reply) const;

 private:
  std::string request(Kind kind, std::size_t key) const;
  std::size_t reply_units(Kind kind) const;
  std::string expected_reply(Kind kind) const;

  const Protocol protocol_;
  const Kind kind_;
  std::vector<Batch> batches_;
};

}  // namespace bench
