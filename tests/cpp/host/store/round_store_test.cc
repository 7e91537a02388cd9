#include "host/store/round_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "elastic/store_server.h"
#include "os/loop/event_loop.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using std::chrono::milliseconds;

constexpr const char* kHost = "127.0.0.1";

class RoundStoreTest : public ::testing::Test {
 protected:
  std::uint16_t prepare(RoundStore* store) {
    const auto port = store->prepare(kHost);
    EXPECT_TRUE(port.ok()) << port.status().message();
    return port.ok() ? *port : std::uint16_t{0};
  }
  // Whether a server listens on the port.
  static bool is_served(std::uint16_t port) { return !os::Listener::open(kHost, port).ok(); }
  // First and last of `count` consecutive free ports. The search begins at another place in each
  // process, so that tests that run at once find different ones.
  static PortRange free_range(int count) {
    for (auto first = static_cast<std::uint16_t>(20000 + ::getpid() % 1000 * 10); first < 32000;
         first = static_cast<std::uint16_t>(first + count)) {
      int free = 0;
      for (int i = 0; i < count; ++i)
        free += is_served(static_cast<std::uint16_t>(first + i)) ? 0 : 1;
      if (free == count) return {first, static_cast<std::uint16_t>(first + count - 1)};
    }
    ADD_FAILURE() << "no free ports";
    return {};
  }

  support::LoopGroup group_;
  const std::unique_ptr<os::EventLoop> loop_ = *os::EventLoop::create(&group_);
};

TEST_F(RoundStoreTest, ServesBeforeTheRoundBeginsAndUntilASecondAfterItsEnd) {
  RoundStore store(loop_.get(), {});
  const std::uint16_t port = prepare(&store);
  EXPECT_TRUE(is_served(port));
  EXPECT_FALSE(store.is_needed());
  store.begin_round(true);
  EXPECT_TRUE(store.is_needed());
  store.end_round();
  EXPECT_FALSE(store.is_needed());
  group_.advance(milliseconds(999));
  EXPECT_TRUE(is_served(port));
  group_.advance(milliseconds(1));
  EXPECT_FALSE(is_served(port));
}

TEST_F(RoundStoreTest, UsesADifferentPortPerRoundAndKeepsAnUnusedOne) {
  RoundStore store(loop_.get(), {});
  const std::uint16_t first = prepare(&store);
  EXPECT_EQ(prepare(&store), first) << "prepared twice before a round began";
  store.begin_round(false);
  EXPECT_EQ(prepare(&store), first) << "rank 0 was elsewhere";
  store.begin_round(true);
  EXPECT_NE(prepare(&store), first);
}

TEST_F(RoundStoreTest, KeepsAFixedPortThroughAllRounds) {
  const auto hold = os::ReservedPort::open(kHost, 0);  // of no other program
  ASSERT_TRUE(hold.ok());
  const std::uint16_t port = hold->port();
  RoundStore store(loop_.get(), {.fixed_port = port, .ports = {}, .limits = {}});
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(prepare(&store), port);
    store.begin_round(true);
    store.end_round();
    EXPECT_FALSE(store.is_needed());
    EXPECT_TRUE(is_served(port));
  }
}

TEST_F(RoundStoreTest, TakesItsPortsFromTheRangeInTurn) {
  const PortRange range = free_range(3);
  RoundStore store(loop_.get(), {.ports = range, .limits = {}});
  std::uint16_t last = 0;
  for (int round = 0; round < 5; ++round) {
    const std::uint16_t port = prepare(&store);
    EXPECT_GE(port, range.first);
    EXPECT_LE(port, range.last);
    EXPECT_NE(port, last);
    last = port;
    store.begin_round(true);
  }
}

TEST_F(RoundStoreTest, BeginsWithTheFirstPortOfTheRange) {
  const PortRange range = free_range(3);
  RoundStore store(loop_.get(), {.ports = range, .limits = {}});
  EXPECT_EQ(prepare(&store), range.first);
}

// The next round is prepared before the nodes have reported that all workers of this one have
// ended.
TEST_F(RoundStoreTest, KeepsTheOnlyPortOfARangeThroughAllRounds) {
  const PortRange range = free_range(1);
  for (const bool is_shared : {true, false}) {
    RoundStore store(loop_.get(), {.ports = range, .is_shared = is_shared, .limits = {}});
    for (int round = 0; round < 4; ++round) {
      EXPECT_EQ(prepare(&store), range.first);
      store.begin_round(true);
      if (round % 2 == 0) store.end_round();
    }
  }
}

TEST_F(RoundStoreTest, ErrorNamesTheRangeInUse) {
  auto other = StoreServer::start({});
  ASSERT_TRUE(other.ok());
  const std::uint16_t port = (*other)->port();
  RoundStore store(loop_.get(), {.ports = {port, port}, .limits = {}});
  const auto prepared = store.prepare(kHost);
  EXPECT_EQ(prepared.status().code(), StatusCode::kUnavailable);
  const std::string range = std::to_string(port) + ":" + std::to_string(port);
  EXPECT_NE(prepared.status().message().find("no port of " + range + " is free"),
            std::string::npos);
}

TEST_F(RoundStoreTest, OnlyReservesThePortWhenAWorkerRunsTheStore) {
  RoundStore store(loop_.get(), {.ports = {}, .is_shared = false, .limits = {}});
  const std::uint16_t port = prepare(&store);
  store.begin_round(true);
  EXPECT_FALSE(is_served(port));
  EXPECT_FALSE(store.is_needed()) << "the worker's store ends with the worker";
  EXPECT_NE(prepare(&store), port);
}

}  // namespace
}  // namespace elastic::host
