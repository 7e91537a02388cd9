#pragma once

// The requests that a load generator sends, in the protocol of the server under test, and how
// their replies are counted. The same keys (16 bytes and the "/" of PyTorch's client) and values
// (32 bytes) for every server.

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

// One write's worth of requests and the replies that it brings.
struct Batch {
  std::string bytes;
  // What completes it: so many bytes, or, for Redis, whose integers vary in length, so many lines.
  std::size_t reply_units = 0;
};

class Traffic {
 public:
  // `pipeline` requests of `kind` in each batch. TCPStore's SET has no reply, so its batches end
  // with one PING.
  Traffic(Protocol protocol, Kind kind, std::size_t pipeline);

  // Connects to the server and says what its protocol wants said first.
  int connect(std::uint16_t port) const;
  // Stores the keys that the requests name and checks one reply byte for byte, so that a server
  // that answers nonsense is not measured.
  void prepare(std::uint16_t port) const;

  // Batches that go over all keys; send them in turn.
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
