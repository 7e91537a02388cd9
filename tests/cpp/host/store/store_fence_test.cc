// A store that serves only some addresses: what other clients can do, and for how long.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/session/session_wire.h"
#include "host/base/admission.h"
#include "host/store/store_service.h"
#include "host/store/store_test_client.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class StoreFenceTest : public testing::Test {
 protected:
  void start(const StoreLimits& limits) {
    thread_ = *os::LoopThread::start("store");
    thread_->call([&] {
      service_ = *StoreService::open(&thread_->loop(), {.host = "127.0.0.1", .limits = limits});
      service_->fence([this](const auto&, const auto&) { return is_allowed.load(); },
                      [](const std::string&) {});
    });
  }
  void TearDown() override {
    if (thread_ != nullptr) thread_->call([&] { service_.reset(); });
  }
  std::unique_ptr<TestClient> validated() {
    auto client = std::make_unique<TestClient>(service_->port());
    client->validate();
    EXPECT_TRUE(client->ping());
    return client;
  }

  std::atomic<bool> is_allowed = false;

 private:
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<StoreService> service_;
};

TEST_F(StoreFenceTest, AClientOutsideMakesPlaceForNewOnes) {
  start({.pending_per_address_max = 1});
  const auto first = validated();
  const auto second = validated();
  EXPECT_TRUE(first->is_closed());
  is_allowed = true;
  EXPECT_TRUE(second->set("/key", "value")) << "its host has proved a token since";
  const auto third = validated();
  const auto fourth = validated();
  for (auto* client : {second.get(), third.get(), fourth.get()}) {
    EXPECT_EQ(client->get("/key"), "value");
  }
}

TEST_F(StoreFenceTest, AClientOutsideKeepsItsDeadline) {
  start({.validate_timeout = milliseconds(100)});
  EXPECT_TRUE(validated()->is_closed());
}

TEST_F(StoreFenceTest, AClientOutsideCannotFillTheMemoryWithARequest) {
  start({});
  const auto client = validated();
  client->send(TestClient::set_frame("/key", std::string(1 << 20, 'x')).substr(0, 64 << 10));
  EXPECT_TRUE(client->is_closed());
}

// A client that begins a session, and another one that connects, in one iteration.
TEST(StoreFence, AClientThatBeginsASessionIsNoLongerPending) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("store", &group);
  std::unique_ptr<StoreService> service;
  std::vector<os::DetachedStream> sessions;
  thread->call([&] {
    service = *StoreService::open(&thread->loop(),
                                  {.host = "127.0.0.1", .limits = {.pending_per_address_max = 1}});
    service->fence([](const auto&, const auto&) { return false; }, [](const std::string&) {});
    service->accept_sessions([&](os::DetachedStream one) { sessions.push_back(std::move(one)); },
                             true);
  });
  TestClient first(service->port());
  first.validate();
  first.send(TestClient::list_frame(wire::Opcode::kCheck, {std::string(session::kReservedKey)}));
  ASSERT_EQ(first.receive(1), std::string(1, wire::kReady));
  ASSERT_EQ(::send(first.fd(), &session::kTlsFirstByte, 1, 0), 1);
  const TestClient second(service->port());
  group.settle();
  EXPECT_EQ(sessions.size(), 1U);
  EXPECT_EQ(service->stats().connections, 1U);
  EXPECT_EQ(service->stats().connections_rejected, 0U);
  thread->call([&] { service.reset(); });
}

TEST(StoreFence, ClientsOutsideUseAPartOfTheConnectionsOnly) {
  constexpr std::size_t kUsedMax = 1024 / 4;
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("store", &group);
  std::unique_ptr<StoreService> service;
  thread->call([&] {
    service =
        *StoreService::open(&thread->loop(), {.host = "::", .limits = {.connections_max = 1024}});
    service->fence([](const auto&, const auto&) { return false; }, [](const std::string&) {});
  });
  std::vector<std::unique_ptr<TestClient>> clients;
  for (std::size_t i = 0; i < 2 * kUsedMax; ++i) {
    const char* const address = i % 2 == 0 ? "127.0.0.1" : "::1";
    clients.push_back(std::make_unique<TestClient>(service->port(), address));
  }
  group.settle();
  EXPECT_LE(service->stats().connections, kUsedMax);
  thread->call([&] { service.reset(); });
}

TEST(AddressFence, AllowsItsHostsAndThisHost) {
  const os::SocketAddress here = *os::parse_address("10.0.0.1");
  const auto address = [](const char* text) { return *os::parse_address(text); };
  const std::set<std::string> hosts = {"10.0.0.2", "2001:db8::7"};
  const AddressFence fence(hosts);
  EXPECT_TRUE(fence.allows(address("10.0.0.2"), here, {}));
  EXPECT_TRUE(fence.allows(address("::ffff:10.0.0.2"), here, {}));
  EXPECT_TRUE(fence.allows(address("2001:db8::7"), here, {}));
  EXPECT_FALSE(fence.allows(address("10.0.0.3"), here, {}));
  EXPECT_TRUE(fence.allows(here, here, {})) << "a client on the same host";
  EXPECT_TRUE(fence.allows(address("127.0.0.1"), address("127.0.0.1"), {}));
}

TEST(AddressFence, AHostIsAllowedUntilSomeTimeAfterItsLastSession) {
  AddressFence fence(seconds(60));
  const Instant begin(seconds(1000));
  EXPECT_FALSE(fence.allows("10.0.0.1", begin));
  fence.session_begun("10.0.0.1");
  fence.session_begun("10.0.0.1");
  fence.session_ended("10.0.0.1", begin);
  EXPECT_TRUE(fence.allows("10.0.0.1", begin + seconds(600))) << "one session is open";
  fence.session_ended("10.0.0.1", begin + seconds(600));
  fence.session_ended("10.0.0.2", begin + seconds(600));  // never begun
  EXPECT_TRUE(fence.allows("10.0.0.1", begin + seconds(659)));
  EXPECT_FALSE(fence.allows("10.0.0.1", begin + seconds(660)));
  fence.session_begun("10.0.0.1");
  EXPECT_TRUE(fence.allows("10.0.0.1", begin + seconds(700)));
}

}  // namespace
}  // namespace elastic::host
