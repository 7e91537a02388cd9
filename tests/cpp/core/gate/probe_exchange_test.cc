#include "core/gate/probe_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <string>

#include "support/instant.h"

namespace elastic::gate {
namespace {

using namespace std::chrono_literals;
using support::at;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

// A client and a server, and a network with a delay and a rate in each direction.
class Path {
 public:
  Duration delay = 100us;
  double to_server = 1e9;  // bytes a second
  double to_client = 1e9;
  std::size_t largest = 1U << 30;  // longer messages are lost

  ProbeResult measure() {
    ProbeClient client(7, kProbeOrderLimit, now_);
    while (!client.result()) {
      put(client.take(), to_server, &upstream_);
      const auto deadline = client.next_deadline();
      EXPECT_TRUE(deadline.has_value());
      Instant next = *deadline;
      if (!upstream_.queue.empty()) next = std::min(next, upstream_.queue.front().at);
      if (!downstream_.queue.empty()) next = std::min(next, downstream_.queue.front().at);
      now_ = std::max(now_, next);
      if (auto bytes = take(&upstream_)) {
        put(server_.receive(*decode_probe(*bytes)), to_client, &downstream_);
      } else if (auto answer = take(&downstream_)) {
        client.receive(*decode_probe(*answer), now_);
      } else {
        client.tick(now_);
      }
    }
    return *client.result();
  }
  Duration took() const { return now_ - at(0); }

 private:
  struct Sent {
    Instant at;
    std::string bytes;
  };
  struct Direction {
    Instant free_at;
    std::deque<Sent> queue;
  };
  void put(const std::vector<std::string>& messages, double rate, Direction* direction) {
    for (const std::string& one : messages) {
      if (one.size() > largest) continue;
      const std::chrono::duration<double> time(static_cast<double>(one.size()) / rate);
      direction->free_at =
          std::max(direction->free_at, now_) + std::chrono::duration_cast<Duration>(time);
      direction->queue.push_back({direction->free_at + delay, one});
    }
  }
  std::optional<std::string> take(Direction* direction) {
    if (direction->queue.empty() || direction->queue.front().at > now_) return std::nullopt;
    std::string bytes = std::move(direction->queue.front().bytes);
    direction->queue.pop_front();
    return bytes;
  }

  Instant now_ = at(0);
  ProbeServer server_;
  Direction upstream_;
  Direction downstream_;
};

TEST(ProbeExchange, MeasuresLatencyAndTheSlowerDirection) {
  Path network;
  const ProbeResult result = network.measure();
  EXPECT_TRUE(result.has_answered) << result.error;
  EXPECT_NEAR(static_cast<double>(result.latency.count()), 200e3, 20e3);
  EXPECT_THAT(result.bytes_per_second, DoubleNear(1e9, 2e8));
  EXPECT_LT(network.took(), 200ms);
  for (const bool is_upstream : {true, false}) {
    Path slow;
    (is_upstream ? slow.to_server : slow.to_client) = 1e8;
    const ProbeResult measured = slow.measure();
    EXPECT_THAT(measured.bytes_per_second, DoubleNear(1e8, 2e7)) << is_upstream;
  }
}

TEST(ProbeExchange, ASlowNetworkIsMeasuredInABoundedTime) {
  for (const double rate : {1e5, 1e6, 1e7}) {
    Path network;
    network.to_server = network.to_client = rate;
    const ProbeResult result = network.measure();
    EXPECT_TRUE(result.has_answered) << rate << result.error;
    EXPECT_GT(result.bytes_per_second, rate / 4);
    EXPECT_LT(result.bytes_per_second, rate * 1.2);
    EXPECT_LT(network.took(), kProbeOrderLimit);
  }
  Path distant;
  distant.delay = 100ms;
  EXPECT_TRUE(distant.measure().has_answered);
  EXPECT_LE(distant.took(), kProbeOrderLimit);
}

TEST(ProbeExchange, APathThatDropsLargePacketsIsBad) {
  Path network;
  network.largest = 1000;
  const ProbeResult result = network.measure();
  EXPECT_FALSE(result.has_answered);
  EXPECT_THAT(result.error, HasSubstr("compare the MTU"));
}

TEST(ProbeExchange, APartnerThatDoesNotAnswerEndsItAtTheLimit) {
  ProbeClient client(7, 2s, at(0));
  EXPECT_EQ(client.take().size(), 1U);
  client.tick(at(1));
  EXPECT_FALSE(client.result());
  client.tick(at(2));
  EXPECT_EQ(client.result(), (ProbeResult{false, 0, {}, "no answer within 2 s"}));
  client.lost("later");
  EXPECT_EQ(client.result()->error, "no answer within 2 s");
}

TEST(ProbeExchange, ALostConnectionEndsItAtOnce) {
  ProbeClient client(7, 2s, at(0));
  client.lost("connection refused");
  EXPECT_EQ(client.result(), (ProbeResult{false, 0, {}, "connection refused"}));
  EXPECT_EQ(client.next_deadline(), std::nullopt);
}

TEST(ProbeExchange, MessagesThatAreNotExpectedHaveNoEffect) {
  ProbeClient client(7, 2s, at(0));
  (void)client.take();
  const std::string data(100, 'x');
  for (const ProbeMessage& one : std::vector<ProbeMessage>{{ProbeKind::kPong, 8, 1},
                                                           {ProbeKind::kPong, 7, 2},
                                                           {ProbeKind::kPing, 7, 1},
                                                           {ProbeKind::kBegin, 7, 1},
                                                           {ProbeKind::kTaken, 7, 1},
                                                           {ProbeKind::kPiece, 7, 0, data}}) {
    client.receive(one, at(0));
    EXPECT_TRUE(client.take().empty());
    EXPECT_FALSE(client.result());
  }
  ProbeServer server;
  EXPECT_TRUE(server.receive({ProbeKind::kPiece, 7, 0, data}).empty());
  EXPECT_TRUE(server.receive({ProbeKind::kTaken, 7, 1}).empty());
  EXPECT_TRUE(server.receive({ProbeKind::kBegin, 7, kProbeBytes + 1}).empty());
  EXPECT_EQ(server.receive({ProbeKind::kBegin, 7, kProbeBytes}).size(), 1U);
  EXPECT_TRUE(server.receive({ProbeKind::kBegin, 9, kProbeBytes}).empty());
  EXPECT_TRUE(server.receive({ProbeKind::kTaken, 7, kProbeBytes}).empty()) << "not sent";
  EXPECT_EQ(server.receive({ProbeKind::kTaken, 7, kProbePiece}).size(), 2U);
  EXPECT_TRUE(server.receive({ProbeKind::kTaken, 7, 0}).empty()) << "less than before";
  EXPECT_EQ(server.receive({ProbeKind::kPiece, 7, 0, data}).size(), 1U);
  EXPECT_TRUE(server.receive({ProbeKind::kPiece, 8, 0, data}).empty());
}

TEST(ProbeExchange, EachMessageIsReadAsItWasWritten) {
  const std::string data(kProbePiece, 'x');
  for (const ProbeMessage& one : std::vector<ProbeMessage>{{ProbeKind::kPing, 1, 2},
                                                           {ProbeKind::kPong, 1, 2},
                                                           {ProbeKind::kBegin, 3, kProbeBytes},
                                                           {ProbeKind::kPiece, 3, 0, data},
                                                           {ProbeKind::kTaken, 3, 5}}) {
    const std::string bytes = encode(one);
    EXPECT_EQ(decode_probe(bytes), one);
    const std::size_t head = 17;
    for (std::size_t size = 0; size < head; ++size) {
      EXPECT_EQ(decode_probe(std::string_view(bytes).substr(0, size)), std::nullopt);
    }
  }
  EXPECT_EQ(decode_probe(encode({ProbeKind::kPiece, 3, 0, data + "x"})), std::nullopt);
  EXPECT_EQ(decode_probe(encode({ProbeKind::kPiece, 3, 0})), std::nullopt);
  EXPECT_EQ(decode_probe(encode({ProbeKind::kPing, 3, 0, "x"})), std::nullopt);
  for (const int kind : {0, 6, 255}) {
    std::string bytes = encode({ProbeKind::kPing, 1, 2});
    bytes[0] = static_cast<char>(kind);
    EXPECT_EQ(decode_probe(bytes), std::nullopt);
  }
}

}  // namespace
}  // namespace elastic::gate
