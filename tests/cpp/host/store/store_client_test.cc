// The client against elastic's own server: results of calls, threads, fork, close, reconnection.

#include "elastic/store_client.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "elastic/store_server.h"
#include "os/loop/clock.h"
#include "os/net/listener.h"
#include "support/eventually.h"

namespace elastic {
namespace {

using support::eventually;

using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<StoreServer> start_server(std::uint16_t port = 0) {
  StoreServerOptions options;
  options.port = port;
  auto server = StoreServer::start(options);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return *std::move(server);
}

std::unique_ptr<StoreClient> connect(std::uint16_t port, Duration timeout = seconds(60)) {
  StoreClientOptions options;
  options.port = port;
  options.timeout = timeout;
  auto client = StoreClient::connect(options);
  EXPECT_TRUE(client.ok()) << client.status().message();
  return *std::move(client);
}

class StoreClientTest : public ::testing::Test {
 protected:
  const os::ReservedPort port_ =
      *os::ReservedPort::open("127.0.0.1", 0);  // for a server that starts again
  std::unique_ptr<StoreServer> server_ = start_server(port_.port());
  std::unique_ptr<StoreClient> client_ = connect(server_->port());
};

TEST_F(StoreClientTest, EachCallReturnsItsDocumentedResult) {
  EXPECT_TRUE(client_->set("a", "1").ok());
  EXPECT_EQ(*client_->get("a"), "1");
  EXPECT_EQ(*client_->add("n", 5), 5);
  EXPECT_EQ(*client_->add("n", -7), -2);
  EXPECT_EQ(*client_->get("n"), "-2");
  EXPECT_TRUE(*client_->check(std::vector<std::string>{"a", "n"}));
  EXPECT_FALSE(*client_->check(std::vector<std::string>{"a", "missing"}));
  EXPECT_TRUE(client_->wait(std::vector<std::string>{"a", "n"}).ok());
  EXPECT_EQ(*client_->compare_set("c", "", "first"), "first");
  EXPECT_EQ(*client_->compare_set("c", "other", "second"), "first");
  EXPECT_EQ(*client_->compare_set("c", "first", "second"), "second");
  EXPECT_EQ(*client_->compare_set("missing", "expected", "x"), "expected");
  EXPECT_TRUE(client_->append("c", "!").ok());
  EXPECT_EQ(*client_->get("c"), "second!");
  EXPECT_TRUE(*client_->delete_key("c"));
  EXPECT_FALSE(*client_->delete_key("c"));
  EXPECT_EQ(*client_->num_keys(), 2);
  auto names = *client_->list_keys();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "n"}));
  EXPECT_TRUE(client_->ping().ok());
}

TEST_F(StoreClientTest, ListsOfKeysKeepTheirOrder) {
  const std::vector<std::pair<std::string, std::string>> items{{"x", "1"}, {"y", ""}, {"z", "3"}};
  EXPECT_TRUE(client_->multi_set(items).ok());
  EXPECT_EQ(*client_->multi_get(std::vector<std::string>{"z", "y", "x"}),
            (std::vector<std::string>{"3", "", "1"}));
  EXPECT_EQ(*client_->multi_get({}), std::vector<std::string>{});
  EXPECT_TRUE(client_->wait({}).ok());
  EXPECT_TRUE(*client_->check({}));
}

TEST_F(StoreClientTest, QueuesAreFirstInFirstOut) {
  EXPECT_TRUE(client_->queue_push("q", "1").ok());
  EXPECT_TRUE(client_->queue_push("q", "2").ok());
  EXPECT_EQ(*client_->queue_len("q"), 2);
  EXPECT_EQ(*client_->queue_pop("q"), "1");
  EXPECT_EQ(*client_->queue_pop("q", false), "2");
  EXPECT_EQ(client_->queue_pop("q", false).status().code(), StatusCode::kNotFound);
}

TEST_F(StoreClientTest, EmptyValueDiffersFromAMissingKey) {
  EXPECT_TRUE(client_->set("empty", "").ok());
  EXPECT_EQ(*client_->get("empty", seconds(30)), "");
}

TEST_F(StoreClientTest, ValuesOfAllSizesAreReturnedUnchanged) {
  for (const std::size_t size : {1u, 16383u, 16384u, 16385u, 1u << 20, 8u << 20}) {
    SCOPED_TRACE(size);
    std::string value(size, 'x');
    value.front() = 'a';
    value.back() = 'z';
    ASSERT_TRUE(client_->set("big", value).ok());
    const auto got = client_->get("big");
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_TRUE(*got == value);
  }
}

TEST_F(StoreClientTest, ArgumentsOverTheLimitsAreRejectedAndNotSent) {
  const std::string key(8191, 'k');
  EXPECT_TRUE(client_->set(key, "v").ok());
  EXPECT_EQ(*client_->get(key), "v");
  const Status errors[] = {
      client_->set(key + "k", "v"),
      client_->get(key + "k").status(),
      client_->set("k", std::string((8u << 20) + 1, 'v')),
      client_->wait(std::vector<std::string>(131073, "k")),
      client_->get("k", seconds(-1)).status(),
  };
  for (const Status& error : errors) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument) << error.message();
  }
  EXPECT_EQ(server_->stats().connections_rejected, 0u);
}

// A server that does not confirm the end of a wait in time loses the connection: on a busy machine
// one of several attempts must show that it is kept.
TEST_F(StoreClientTest, TimeoutNamesTheKeyAndKeepsTheConnection) {
  bool is_kept = false;
  for (int i = 0; i < 3 || (i < 30 && !is_kept); ++i) {
    const auto before = server_->stats().connections_total;
    const auto got = client_->get("missing", milliseconds(20));
    EXPECT_EQ(got.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(got.status().message().find("'missing'"), std::string::npos);
    EXPECT_NE(got.status().message().find("20 ms"), std::string::npos) << got.status().message();
    EXPECT_EQ(client_->wait(std::vector<std::string>{"missing"}, milliseconds(20)).code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_EQ(
        client_->multi_get(std::vector<std::string>{"missing"}, milliseconds(20)).status().code(),
        StatusCode::kDeadlineExceeded);
    EXPECT_EQ(client_->barrier("b" + std::to_string(i), 2, milliseconds(20)).code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(client_->set("other", std::to_string(i)).ok());
    EXPECT_EQ(*client_->get("other"), std::to_string(i));
    is_kept = server_->stats().connections_total == before;
  }
  EXPECT_TRUE(is_kept);
  EXPECT_TRUE(client_->set("missing", "now").ok());
  EXPECT_EQ(*client_->get("missing"), "now");
}

TEST_F(StoreClientTest, GetReturnsWhenAnotherClientSetsTheKey) {
  auto value = std::async(std::launch::async, [&] { return client_->get("late"); });
  const auto values = std::async(std::launch::async, [&] {
                        return *client_->multi_get(std::vector<std::string>{"late", "later"});
                      }).share();
  EXPECT_TRUE(eventually([&] { return server_->stats().connections >= 2; }));
  EXPECT_TRUE(client_->set("late", "v").ok());
  EXPECT_EQ(*value.get(), "v");
  EXPECT_TRUE(client_->set("later", "w").ok());
  EXPECT_EQ(values.get(), (std::vector<std::string>{"v", "w"}));
}

TEST_F(StoreClientTest, BarrierReleasesAllWhenTheLastArrives) {
  std::vector<std::future<Status>> callers;
  for (int i = 0; i < 4; ++i) {
    callers.push_back(std::async(std::launch::async, [&] { return client_->barrier("b", 4); }));
  }
  for (auto& caller : callers) EXPECT_TRUE(caller.get().ok());
}

TEST_F(StoreClientTest, BlockedCallsDelayNoOtherCall) {
  std::vector<std::future<Result<std::string>>> blocked;
  for (int i = 0; i < 8; ++i) {
    blocked.push_back(std::async(std::launch::async, [&] { return client_->get("gate"); }));
  }
  EXPECT_TRUE(eventually(
      [&] { return server_->stats().connections >= 9 || server_->stats().requests >= 25; }));
  // If one of these waited for a blocked call, it would never return.
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(client_->set("k", std::to_string(i)).ok());
    ASSERT_EQ(*client_->get("k"), std::to_string(i));
  }
  for (const auto& call : blocked) {
    EXPECT_EQ(call.wait_for(seconds(0)), std::future_status::timeout);
  }
  ASSERT_TRUE(client_->set("gate", "open").ok());
  for (auto& call : blocked) EXPECT_EQ(*call.get(), "open");
}

// The server may handle two connections of one client in any order; a thread must not observe that.
TEST_F(StoreClientTest, ThreadReadsItsOwnWritesDespiteOtherThreads) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&, i] {
      const std::string key = "other" + std::to_string(i);
      while (!stop) {
        EXPECT_TRUE(client_->set(key, "x").ok());
        EXPECT_TRUE(client_->add("n", 1).ok());
        EXPECT_EQ(client_->wait(std::vector<std::string>{"never"}, milliseconds(1)).code(),
                  StatusCode::kDeadlineExceeded);
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(client_->set("mine", std::to_string(i)).ok());
    ASSERT_EQ(*client_->get("mine"), std::to_string(i));
    ASSERT_TRUE(client_->set("fresh" + std::to_string(i), "").ok());
    ASSERT_TRUE(*client_->check(std::vector<std::string>{"fresh" + std::to_string(i)}));
  }
  stop = true;
  for (auto& other : others) other.join();
}

TEST_F(StoreClientTest, AddsOfManyThreadsAreAllCounted) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) EXPECT_TRUE(client_->add("n", 1).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(*client_->add("n", 0), 1600);
}

TEST_F(StoreClientTest, EachQueueElementReachesOneConsumer) {
  constexpr int kElements = 200;
  std::atomic<int> sum = 0;
  std::vector<std::thread> consumers;
  for (int i = 0; i < 4; ++i) {
    consumers.emplace_back([&] {
      for (int j = 0; j < kElements / 4; ++j) sum += std::stoi(*client_->queue_pop("q"));
    });
  }
  for (int i = 0; i < kElements; ++i) {
    ASSERT_TRUE(client_->queue_push("q", std::to_string(i)).ok());
  }
  for (auto& consumer : consumers) consumer.join();
  EXPECT_EQ(sum, kElements * (kElements - 1) / 2);
  EXPECT_EQ(*client_->queue_len("q"), 0);
}

TEST_F(StoreClientTest, CloseEndsBlockedCalls) {
  std::vector<std::future<StatusCode>> blocked;
  blocked.push_back(
      std::async(std::launch::async, [&] { return client_->get("never").status().code(); }));
  blocked.push_back(
      std::async(std::launch::async, [&] { return client_->barrier("alone", 2).code(); }));
  EXPECT_TRUE(eventually([&] { return server_->stats().connections >= 2; }));
  client_->close();
  for (auto& call : blocked) EXPECT_EQ(call.get(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->set("k", "v").code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*client_->clone())->set("k", "v").ok());
}

TEST_F(StoreClientTest, InterruptCheckEndsABlockedCall) {
  std::atomic<bool> interrupted = false;
  StoreClientOptions options;
  options.port = server_->port();
  options.interrupted = [&] { return interrupted.load(); };
  auto client = *StoreClient::connect(options);
  auto blocked =
      std::async(std::launch::async, [&] { return client->get("never").status().code(); });
  interrupted = true;
  EXPECT_EQ(blocked.get(), StatusCode::kCancelled);
  interrupted = false;
  EXPECT_TRUE(client->set("k", "v").ok());
}

TEST_F(StoreClientTest, ForkedChildGetsAnErrorAndItsCloneWorks) {
  ASSERT_TRUE(client_->set("k", "parent").ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int failure = 0;
    if (client_->get("k").status().code() != StatusCode::kFailedPrecondition) failure |= 1;
    if (client_->set("k", "child").code() != StatusCode::kFailedPrecondition) failure |= 2;
    client_->close();
    auto clone = client_->clone();
    client_.reset();
    if (!clone.ok() || !(*clone)->set("from child", "v").ok()) failure |= 4;
    if (failure == 0 && *(*clone)->get("k") != "parent") failure |= 8;
    ::_exit(failure);
  }
  int outcome = 0;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_TRUE(WIFEXITED(outcome));
  EXPECT_EQ(WEXITSTATUS(outcome), 0);
  EXPECT_EQ(*client_->get("from child"), "v");
  EXPECT_EQ(*client_->get("k"), "parent");
}

TEST_F(StoreClientTest, CallsSucceedAfterTheServerRestartsOnItsPort) {
  ASSERT_TRUE(client_->set("k", "before").ok());
  ASSERT_TRUE(client_->ping().ok());
  const std::uint16_t port = server_->port();
  server_.reset();
  EXPECT_EQ(client_->add("n", 1).status().code(), StatusCode::kUnavailable);
  server_ = start_server(port);
  // The connection that the first server closed is replaced without an error.
  EXPECT_EQ(*client_->add("n", 1), 1);
  EXPECT_TRUE(client_->set("k", "after").ok());
  EXPECT_EQ(*client_->get("k"), "after");
}

// A set has no reply. So that a loss is reported, the next call fails.
TEST_F(StoreClientTest, NextCallReportsASetThatMayBeLost) {
  ASSERT_TRUE(client_->set("k", "v").ok());
  const std::uint16_t port = server_->port();
  server_.reset();
  server_ = start_server(port);
  EXPECT_EQ(client_->ping().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(client_->ping().ok());
}

TEST_F(StoreClientTest, BlockedCallIsUnavailableWhenTheServerDies) {
  auto blocked =
      std::async(std::launch::async, [&] { return client_->get("never").status().code(); });
  EXPECT_TRUE(eventually([&] { return server_->stats().requests >= 5; }));
  server_.reset();
  EXPECT_EQ(blocked.get(), StatusCode::kUnavailable);
}

TEST_F(StoreClientTest, AddToANonNumberIsUnavailableAndTheClientStaysUsable) {
  ASSERT_TRUE(client_->set("k", "text").ok());
  EXPECT_EQ(client_->add("k", 1).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(*client_->get("k"), "text");
}

TEST(StoreClientConnect, ServerMayStartAfterTheClient) {
  const auto held = os::ReservedPort::open("127.0.0.1", 0);
  ASSERT_TRUE(held.ok());
  const std::uint16_t port = held->port();
  auto client = std::async(std::launch::async, [&] { return connect(port); });
  const auto server = start_server(port);
  EXPECT_TRUE(client.get()->set("k", "v").ok());
}

TEST(StoreClientConnect, ClosedPortIsUnavailableAfterTheTimeout) {
  const auto unused = os::ReservedPort::open("127.0.0.1", 0);
  ASSERT_TRUE(unused.ok());
  StoreClientOptions options;
  options.port = unused->port();
  options.timeout = seconds(1);  // for one attempt at least
  const Instant start = os::monotonic_now();
  const auto client = StoreClient::connect(options);
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_GE(os::monotonic_now() - start, seconds(1));
  EXPECT_NE(client.status().message().find("in 1 s"), std::string::npos);
}

TEST(StoreClientConnect, NamesAndBothFamiliesWork) {
  for (const char* host : {"localhost", "127.0.0.1", "::1", "[::1]"}) {
    SCOPED_TRACE(host);
    StoreServerOptions server_options;
    server_options.host = host;
    auto server = StoreServer::start(server_options);
    if (!server.ok()) continue;  // a machine without IPv6
    StoreClientOptions options;
    options.host = host;
    options.port = (*server)->port();
    auto client = StoreClient::connect(options);
    ASSERT_TRUE(client.ok()) << client.status().message();
    EXPECT_TRUE((*client)->ping().ok());
  }
}

}  // namespace
}  // namespace elastic
