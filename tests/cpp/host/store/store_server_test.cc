#include "elastic/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/store/store_service.h"
#include "host/store/store_test_client.h"
#include "os/base/fd.h"
#include "os/loop/thread.h"
#include "sanitized.h"
#include "support/eventually.h"

namespace elastic::host {
namespace {

using testing::HasSubstr;
using wire::Opcode;

const std::string kByte0(1, '\0');

// Occupies all free descriptors of this process while the object exists.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &low);
    while (true) {
      os::UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!fd.valid()) break;
      taken_.push_back(std::move(fd));
    }
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  void free_one() { taken_.pop_back(); }

 private:
  rlimit before_{};
  std::vector<os::UniqueFd> taken_;
};

class StoreServerTest : public testing::Test {
 protected:
  void start(const StoreServerOptions& options = {}) {
    auto started = StoreServer::start(options);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server = std::move(*started);
  }
  std::unique_ptr<TestClient> connect() {
    auto client = std::make_unique<TestClient>(server->port());
    client->validate();
    return client;
  }
  // Waits until the condition holds; `client` sends pings so that the server's loop runs.
  static bool eventually(TestClient* client, const std::function<bool()>& is_so) {
    return support::eventually([&] { return is_so() || !client->ping(); }) && is_so();
  }

  std::unique_ptr<StoreServer> server;
};

TEST_F(StoreServerTest, FreePortIsReadBackAndServed) {
  start();
  EXPECT_NE(server->port(), 0);
  EXPECT_EQ(server->host(), "127.0.0.1");
  const auto client = connect();
  EXPECT_TRUE(client->ping());
  client->set("/k", "v");
  EXPECT_EQ(client->get("/k"), "v");
  const StoreServerStats stats = server->stats();
  EXPECT_EQ(stats.connections, 1u);
  EXPECT_EQ(stats.keys, 1u);
  EXPECT_EQ(stats.requests, 4u);  // with VALIDATE
  EXPECT_GT(stats.bytes, 0u);
}

TEST_F(StoreServerTest, LiteralAddressIsBoundExactly) {
  start({.host = "127.0.0.1"});
  EXPECT_EQ(TestClient(server->port(), "127.0.0.2").connect_error(), ECONNREFUSED);
}

TEST_F(StoreServerTest, EmptyHostBindsEveryInterfaceOfBothFamilies) {
  start({.host = ""});
  for (const char* address : {"127.0.0.1", "127.0.0.2", "::1"}) {
    TestClient client(server->port(), address);
    if (client.connect_error() == EADDRNOTAVAIL) GTEST_SKIP() << "this machine has no " << address;
    client.validate();
    EXPECT_TRUE(client.ping()) << address;
  }
}

TEST_F(StoreServerTest, ForeignAddressIsAnInvalidArgument) {
  for (const char* host : {"192.0.2.1", "no-such-host.invalid", "300.0.0.1"}) {
    const auto started = StoreServer::start({.host = host});
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.status().code(), StatusCode::kInvalidArgument) << started.status().message();
    EXPECT_THAT(std::string(started.status().message()), HasSubstr(host));
  }
}

TEST_F(StoreServerTest, PortInUseIsReportedWithItsOwner) {
  start();
  const auto second = StoreServer::start({.port = server->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  const std::string message(second.status().message());
  EXPECT_THAT(message, HasSubstr("127.0.0.1:" + std::to_string(server->port())));
  EXPECT_THAT(message, HasSubstr("pid " + std::to_string(::getpid()) + " ("));
  EXPECT_THAT(message, HasSubstr(program_invocation_short_name));
}

TEST_F(StoreServerTest, AnotherClientEndsABlockedWaitDuringWhichPingsAreAnswered) {
  start();
  const auto waiter = connect();
  const auto setter = connect();
  waiter->send(TestClient::list_frame(Opcode::kWait, {"/a", "/b"}));
  EXPECT_TRUE(waiter->ping()) << "answered at once, before the wait";
  setter->set("/a", "");
  EXPECT_TRUE(setter->ping());
  EXPECT_TRUE(waiter->ping()) << "still waiting for /b";
  setter->set("/b", "");
  EXPECT_EQ(waiter->receive(1), kByte0);
  EXPECT_TRUE(waiter->ping());
}

TEST_F(StoreServerTest, DisconnectRemovesAClientsWait) {
  start();
  const auto other = connect();
  for (const bool orderly : {true, false}) {
    auto waiter = connect();
    waiter->send(TestClient::list_frame(Opcode::kWait, {"/never"}));
    EXPECT_TRUE(waiter->ping());
    EXPECT_GT(server->stats().bytes, 0u);
    orderly ? waiter->close() : waiter->reset();
    EXPECT_TRUE(eventually(other.get(), [&] {
      const StoreServerStats stats = server->stats();
      return stats.connections == 1 && stats.bytes == 0;
    }));
  }
  other->set("/never", "");
  EXPECT_TRUE(other->ping());
}

TEST_F(StoreServerTest, RepliesThatAreReadyTogetherAreSentTogether) {
  start();
  const auto client = connect();
  client->set("/k", "value");
  EXPECT_TRUE(client->ping());
  std::string frames;
  for (int i = 0; i < 16; ++i) frames += TestClient::key_frame(Opcode::kGet, "/k");
  for (int round = 0; round < 20; ++round) {
    client->send(frames);
    EXPECT_EQ(client->receive_some().size(), 16u * 13);
  }
}

TEST_F(StoreServerTest, OnlyTheViolatingConnectionIsClosed) {
  start();
  const auto bystander = connect();
  const std::string huge = [] {
    std::string frame = "\x01";
    wire::append_integer<std::uint64_t>(&frame, std::uint64_t{1} << 40);
    return frame;
  }();
  const std::vector<std::pair<bool, std::string>> rows = {
      {false, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {false, std::string("\0\xef\xbe\xad\xde", 5)},
      {false, "\x0dPING"},
      {true, "\x13"},
      {true, std::string(1, '\0')},
      {true, huge},
      {true, TestClient::set_frame("/x", "abc") + TestClient::number_frame(Opcode::kAdd, "/x", 1)},
  };
  for (const auto& [validate, bytes] : rows) {
    TestClient client(server->port());
    if (validate) client.validate();
    client.send(bytes);
    EXPECT_TRUE(client.is_closed());
    EXPECT_TRUE(bystander->ping());
  }
  EXPECT_EQ(server->stats().connections_rejected, rows.size());
  EXPECT_EQ(bystander->get("/x"), "abc");
}

TEST_F(StoreServerTest, RepliesBeforeTheViolationAreStillSent) {
  start();
  const auto client = connect();
  client->set("/k", "v");
  client->send(TestClient::key_frame(Opcode::kGet, "/k") + '\xff');
  EXPECT_EQ(client->receive(100), std::string("\x01\0\0\0\0\0\0\0v", 9));
}

TEST_F(StoreServerTest, EveryRequestSentBeforeAnOrderlyCloseIsHandled) {
  start();
  const auto other = connect();
  const auto client = connect();
  std::string frames;
  for (int i = 0; i < 500; ++i) frames += TestClient::set_frame("/" + std::to_string(i), "v");
  client->send(frames);
  client->close();
  EXPECT_TRUE(eventually(other.get(), [&] { return other->num_keys() == 500; }));
}

TEST_F(StoreServerTest, RequestsPausedForASlowReaderAreHandledAfterItDisconnects) {
  start();
  const auto other = connect();
  const auto client = connect();
  client->set("/big", std::string(1 << 20, 'x'));
  std::string frames;
  for (int i = 0; i < 50; ++i) frames += TestClient::key_frame(Opcode::kGet, "/big");
  client->send(frames + TestClient::set_frame("/last-will", "done"));
  other->send(TestClient::list_frame(Opcode::kWait, {"/last-will"}));
  client->close();
  EXPECT_EQ(other->receive(1), kByte0);
}

TEST_F(StoreServerTest, ResetInTheMiddleOfAFrameReleasesItsBuffers) {
  start();
  const auto other = connect();
  const auto client = connect();
  const std::string frame = TestClient::set_frame("/k", std::string(100000, 'x'));
  client->send(std::string_view(frame).substr(0, 70000));
  EXPECT_TRUE(eventually(other.get(), [&] { return server->stats().bytes >= 70000; }));
  client->reset();
  EXPECT_TRUE(eventually(other.get(), [&] { return server->stats().bytes == 0; }));
  EXPECT_EQ(other->num_keys(), 0);
}

TEST_F(StoreServerTest, SlowReaderIsPausedAndReceivesEverything) {
  start();
  const auto other = connect();
  const auto client = connect();
  const std::string value(64 << 10, 'x');
  client->set("/k", value);
  constexpr int kGets = 1000;
  std::string frames;
  for (int i = 0; i < kGets; ++i) frames += TestClient::key_frame(Opcode::kGet, "/k");
  client->send(frames);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(other->ping());
  EXPECT_LT(server->stats().bytes, 2u << 20) << "62 MiB of replies are not built in advance";
  std::string reply;
  wire::append_bytes(&reply, value);
  for (int i = 0; i < kGets; ++i) ASSERT_EQ(client->receive(reply.size()), reply);
  EXPECT_TRUE(client->ping());
}

TEST_F(StoreServerTest, FullStoreClosesTheConnectionThatExceedsIt) {
  start({.limits = {.total_bytes_max = 1 << 20}});
  const auto client = connect();
  client->set("/k", std::string(400 << 10, 'x'));
  EXPECT_TRUE(client->ping());
  client->set("/more", std::string(400 << 10, 'x'));
  EXPECT_TRUE(client->is_closed());
  const auto other = connect();
  EXPECT_EQ(other->num_keys(), 1);
  EXPECT_LE(server->stats().bytes, 1u << 20);
}

TEST_F(StoreServerTest, ConnectionsOverTheLimitAreClosedAtOnce) {
  start({.limits = {.connections_max = 2}});
  auto first = connect();
  const auto second = connect();
  EXPECT_TRUE(first->ping() && second->ping());
  EXPECT_TRUE(connect()->is_closed());
  first->close();
  EXPECT_TRUE(eventually(second.get(), [&] { return server->stats().connections == 1; }));
  EXPECT_TRUE(connect()->ping());
}

TEST_F(StoreServerTest, FiveHundredClientsPassABarrier) {
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 500; ++i) {
    clients.push_back(connect());
    clients.back()->send(TestClient::number_frame(Opcode::kBarrier, "/b", 500));
  }
  for (const auto& client : clients) ASSERT_EQ(client->receive(1), kByte0);
  EXPECT_EQ(server->stats().connections, 500u);
}

TEST_F(StoreServerTest, WithoutFreeDescriptorsOpenConnectionsAreServedAndNewOnesWait) {
  start();
  const auto connected = connect();
  EXPECT_TRUE(connected->ping());
  os::UniqueFd late_socket = TestClient::make_socket();
  {
    NoDescriptors none;
    TestClient late(std::move(late_socket), server->port());
    EXPECT_EQ(late.connect_error(), 0) << "the kernel queues it";
    late.validate();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(connected->ping());
    EXPECT_EQ(server->stats().connections, 1u);
    none.free_one();
    EXPECT_TRUE(late.ping());
  }
}

TEST_F(StoreServerTest, OnlyAConnectionThatSentValidateMayBeIdle) {
  start({.limits = {.validate_timeout = std::chrono::milliseconds(200)}});
  auto idle = connect();
  for (int i = 0; i < 100 && !idle->ping(); ++i) idle = connect();  // its VALIDATE came too late
  EXPECT_TRUE(idle->ping());
  EXPECT_TRUE(TestClient(server->port()).is_closed()) << "the deadline has passed";
  EXPECT_TRUE(idle->ping());
  server->close();
  EXPECT_GE(server->stats().connections_rejected, 1u);
}

// In KiB.
std::int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t size = 0;
    if (word == "RssAnon:" && status >> size) return size;
  }
  return -1;
}

// The buffers of a flood have lower addresses than those of a connection that remains, so malloc
// alone cannot return them.
TEST_F(StoreServerTest, ReturnsTheMemoryOfAFloodToTheSystem) {
  if (kIsSanitized) GTEST_SKIP() << "the sanitizer's allocator keeps freed memory";
  start();
  const auto client = connect();
  EXPECT_TRUE(client->ping());
  const std::int64_t before = anonymous_memory();
  if (before < 0) GTEST_SKIP() << "no RssAnon here";
  constexpr std::size_t kClients = 400;
  constexpr std::size_t kPartBytes = 60 << 10;  // below what malloc takes from the system directly
  std::vector<std::unique_ptr<TestClient>> flood;
  const std::string part = TestClient::set_frame("/k", std::string(kPartBytes, 'x'));
  for (std::size_t i = 0; i < kClients; ++i) {
    flood.push_back(connect());
    flood.back()->send(std::string_view(part).substr(0, kPartBytes));
  }
  const auto last = connect();
  last->send(std::string_view(part).substr(0, kPartBytes));
  ASSERT_TRUE(
      eventually(client.get(), [&] { return server->stats().bytes > kClients * kPartBytes; }));
  flood.clear();
  ASSERT_TRUE(eventually(client.get(), [&] { return server->stats().connections == 2; }));
  EXPECT_TRUE(eventually(client.get(), [&] { return anonymous_memory() < before + 10'000; }))
      << before << " KiB before, " << anonymous_memory() << " KiB now";
}

TEST_F(StoreServerTest, CloseWithADrainHandlesReceivedRequests) {
  start();
  const auto client = connect();
  EXPECT_TRUE(client->ping());
  std::string frames;
  for (int i = 0; i < 200; ++i) frames += TestClient::set_frame("/" + std::to_string(i), "v");
  frames += '\x07';
  client->send(frames);
  server->close(std::chrono::seconds(30));
  EXPECT_EQ(client->receive(9).size(), 8u) << "the number of keys, then the end";
  EXPECT_EQ(TestClient(server->port()).connect_error(), ECONNREFUSED);
  server->close();  // does nothing
  EXPECT_EQ(server->stats().requests, 203u);
}

TEST_F(StoreServerTest, DrainEndsAtItsDeadlineAlthoughAClientDoesNotRead) {
  start();
  const auto client = connect();
  client->set("/k", std::string(4 << 20, 'x'));
  std::string frames;
  for (int i = 0; i < 16; ++i) frames += TestClient::key_frame(Opcode::kGet, "/k");
  client->send(frames);
  server->close(std::chrono::milliseconds(20));
}

TEST_F(StoreServerTest, DrainDoesNotWaitForBlockedClients) {
  start();
  const auto client = connect();
  client->send(TestClient::list_frame(Opcode::kWait, {"/never"}));
  EXPECT_TRUE(client->ping());
  server->close(std::chrono::hours(1));
  EXPECT_TRUE(client->is_closed());
}

TEST(StoreService, ResetClosesConnectionsRemovesKeysAndKeepsThePort) {
  auto thread = os::LoopThread::start("test-loop");
  ASSERT_TRUE(thread.ok());
  std::unique_ptr<StoreService> service;
  (*thread)->call([&] { service = *StoreService::open(&(*thread)->loop(), {}); });
  TestClient straggler(service->port());
  straggler.validate();
  straggler.set("/stale", "1");
  EXPECT_TRUE(straggler.ping());
  TestClient waiter(service->port());
  waiter.validate();
  waiter.send(TestClient::list_frame(Opcode::kWait, {"/a"}));
  EXPECT_TRUE(waiter.ping());

  (*thread)->call([&] { service->reset(); });
  EXPECT_TRUE(straggler.is_closed());
  EXPECT_TRUE(waiter.is_closed());
  TestClient fresh(service->port());
  fresh.validate();
  EXPECT_EQ(fresh.num_keys(), 0);
  EXPECT_TRUE(fresh.set("/a", ""));
  EXPECT_TRUE(fresh.ping());
  (*thread)->call([&] { service.reset(); });
}

TEST(StoreService, DrainCallbackMayDestroyTheServiceAndIsNotCalledAfterwards) {
  auto thread = os::LoopThread::start("test-loop");
  ASSERT_TRUE(thread.ok());
  os::EventLoop* loop = &(*thread)->loop();
  std::unique_ptr<StoreService> service;
  bool drained = false;
  (*thread)->call([&] {
    service = *StoreService::open(loop, {});
    service->drain(std::chrono::seconds(1), [&drained] { drained = true; });
    service.reset();
  });
  (*thread)->call([] {});
  EXPECT_FALSE(drained);
  std::promise<void> destroyed;
  (*thread)->call([&] {
    service = *StoreService::open(loop, {});
    service->drain(std::chrono::seconds(1), [&] {
      service.reset();
      destroyed.set_value();
    });
  });
  EXPECT_EQ(destroyed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace elastic::host
