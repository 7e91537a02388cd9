#pragma once

// How two nodes measure the network between them: messages that are answered at once, for the
// latency, then bytes in both directions at the same time, for the bandwidth. All of it is bounded,
// in bytes and in time. docs/protocol.md has the messages.
//
//   gate::ProbeClient client(run, limit, now);   // of the node that has the order
//   send(client.take());                         // after each call
//   client.receive(message, now); client.tick(now) at client.next_deadline()
//   if (client.result()) …
//
//   gate::ProbeServer server;  // of the other node: one for each connection
//   send(server.receive(message));
//
// Pure. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/gate/probe_messages.h"
#include "elastic/time.h"

namespace elastic::gate {

inline constexpr std::uint32_t kProbePings = 20;
inline constexpr Duration kProbePingsLimit = std::chrono::milliseconds(400);
inline constexpr std::uint64_t kProbeBytes = std::uint64_t{64} << 20;  // in each direction
inline constexpr Duration kProbeTransferLimit = std::chrono::milliseconds(800);
inline constexpr std::uint64_t kProbePiece = std::uint64_t{32} << 10;
inline constexpr std::uint64_t kProbeWindow = std::uint64_t{1} << 20;

enum class ProbeKind : std::uint8_t {
  kPing = 1,  // `number`: which one
  kPong,      // the answer
  kBegin,     // both sides send `number` bytes from now on
  kPiece,     // some of them
  kTaken,     // so many bytes (`number`) have arrived
};

struct ProbeMessage {
  ProbeKind kind = ProbeKind::kPing;
  std::uint64_t run = 0;  // a number of the client's: messages of another one are ignored
  std::uint64_t number = 0;
  std::string_view data = {};  // kPiece; read: a view of the bytes

  bool operator==(const ProbeMessage&) const = default;
};

std::string encode(const ProbeMessage& message);
// nullopt: the bytes are no message.
std::optional<ProbeMessage> decode_probe(std::string_view bytes);

// One direction of the transfer, at its sender: not more than a window is on its way.
class ProbeSender {
 public:
  void begin(std::uint64_t run, std::uint64_t bytes);
  // False: so many were not sent.
  bool taken(std::uint64_t bytes);
  // Appends what may be sent now.
  void send(std::vector<std::string>* out);
  std::uint64_t taken() const { return taken_; }
  bool is_over() const { return taken_ == bytes_; }

 private:
  std::uint64_t run_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
};

class ProbeServer {
 public:
  // What it answers. A message that is of no use, or comes too often, has none.
  std::vector<std::string> receive(const ProbeMessage& message);

 private:
  std::uint64_t run_ = 0;
  bool has_begun_ = false;
  std::uint64_t received_ = 0;
  ProbeSender sender_;
};

struct ProbeResult {
  bool has_answered = false;
  double bytes_per_second = 0;  // of the slower direction
  Duration latency{};
  std::string error;  // why it has not

  bool operator==(const ProbeResult&) const = default;
};

class ProbeClient {
 public:
  // `limit`: of all of it, with the connection, which the owner opens.
  ProbeClient(std::uint64_t run, Duration limit, Instant now);

  std::vector<std::string> take() { return std::exchange(out_, {}); }
  void receive(const ProbeMessage& message, Instant now);
  // The connection could not be opened, or has ended.
  void lost(const std::string& why);
  void tick(Instant now);
  std::optional<Instant> next_deadline() const;
  const std::optional<ProbeResult>& result() const { return result_; }

 private:
  void on_pong(std::uint64_t number, Instant now);
  void begin_transfer(Instant now);
  void check_transfer(Instant now);
  void end_transfer(Instant now);
  void ping(Instant now);
  void fail(std::string error);

  const std::uint64_t run_;
  const Duration limit_;
  const Instant until_;
  std::vector<std::string> out_;
  std::uint64_t pings_ = 0;
  Instant pinged_;
  std::optional<Instant> pings_until_;  // since the first answer
  std::optional<Duration> latency_;
  std::optional<Instant> began_;  // the transfer
  ProbeSender sender_;
  std::uint64_t received_ = 0;
  std::optional<Duration> sent_in_;
  std::optional<Duration> received_in_;
  std::optional<ProbeResult> result_;
};

}  // namespace elastic::gate
