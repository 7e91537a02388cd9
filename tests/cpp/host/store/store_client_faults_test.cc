// The client against faulty servers: every call ends at its deadline or earlier.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "elastic/store_client.h"
#include "host/base/scripted_server.h"
#include "os/loop/clock.h"

namespace elastic {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using support::ScriptedPeer;
using support::ScriptedServer;

constexpr Duration kTimeout = milliseconds(50);

Result<std::unique_ptr<StoreClient>> connect_client(std::uint16_t port,
                                                    Duration timeout = seconds(60)) {
  StoreClientOptions options;
  options.port = port;
  options.timeout = timeout;
  return StoreClient::connect(options);
}

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

struct Call {
  const char* name;
  std::function<Status(StoreClient&)> run;
};

const std::vector<std::string> kKeys{"a", "b"};

std::vector<Call> calls_with_replies(Duration timeout) {
  return {
      {"get", [timeout](StoreClient& c) { return c.get("k", timeout).status(); }},
      {"add", [timeout](StoreClient& c) { return c.add("k", 1, timeout).status(); }},
      {"check", [timeout](StoreClient& c) { return c.check(kKeys, timeout).status(); }},
      {"wait", [timeout](StoreClient& c) { return c.wait(kKeys, timeout); }},
      {"compare_set",
       [timeout](StoreClient& c) { return c.compare_set("k", "a", "b", timeout).status(); }},
      {"delete_key", [timeout](StoreClient& c) { return c.delete_key("k", timeout).status(); }},
      {"multi_get", [timeout](StoreClient& c) { return c.multi_get(kKeys, timeout).status(); }},
      {"num_keys", [timeout](StoreClient& c) { return c.num_keys(timeout).status(); }},
      {"list_keys", [timeout](StoreClient& c) { return c.list_keys(timeout).status(); }},
      {"queue_pop", [timeout](StoreClient& c) { return c.queue_pop("q", true, timeout).status(); }},
      {"queue_len", [timeout](StoreClient& c) { return c.queue_len("q", timeout).status(); }},
      {"barrier", [timeout](StoreClient& c) { return c.barrier("k", 2, timeout); }},
      {"ping", [timeout](StoreClient& c) { return c.ping(timeout); }},
  };
}

TEST(StoreClientFaults, ConnectToASilentServerEndsAtTheTimeout) {
  ScriptedServer server([](ScriptedPeer& peer, int) { peer.drain(); });
  const auto client = connect_client(server.port(), kTimeout);
  EXPECT_EQ(client.status().code(), StatusCode::kDeadlineExceeded);
}

TEST(StoreClientFaults, WrongNonceIsAPeerViolation) {
  ScriptedServer server([](ScriptedPeer& peer, int) {
    peer.read(10);
    peer.write("HTTP");
    peer.drain();
  });
  EXPECT_EQ(connect_client(server.port()).status().code(), StatusCode::kPeerViolation);
}

TEST(StoreClientFaults, InterruptedHandshakesAreRetried) {
  ScriptedServer server([](ScriptedPeer& peer, int number) {
    if (number == 0) return;
    if (number == 1) return peer.reset();
    peer.shake_hands();
    peer.drain();
  });
  EXPECT_TRUE(connect_client(server.port()).ok());
}

TEST(StoreClientFaults, EveryCallEndsAtItsDeadlineWhenTheServerStopsReplying) {
  for (const Call& call : calls_with_replies(kTimeout)) {
    SCOPED_TRACE(call.name);
    ScriptedServer server([](ScriptedPeer& peer, int) {
      peer.shake_hands();
      peer.drain();
    });
    auto client = connect_client(server.port());
    ASSERT_TRUE(client.ok());
    const Instant start = os::monotonic_now();
    EXPECT_EQ(call.run(**client).code(), StatusCode::kDeadlineExceeded);
    EXPECT_GE(os::monotonic_now() - start, kTimeout);
    (*client)->close();
  }
}

TEST(StoreClientFaults, EveryCallIsUnavailableWhenTheServerResets) {
  for (const Call& call : calls_with_replies(seconds(60))) {
    SCOPED_TRACE(call.name);
    ScriptedServer server([](ScriptedPeer& peer, int) {
      peer.shake_hands();
      peer.read(1);
      peer.reset();
    });
    auto client = connect_client(server.port());
    ASSERT_TRUE(client.ok());
    const StatusCode code = call.run(**client).code();
    EXPECT_EQ(code, StatusCode::kUnavailable) << to_string(code);
  }
}

TEST(StoreClientFaults, IncompleteReplyEndsAtTheDeadline) {
  ScriptedServer server([](ScriptedPeer& peer, int) {
    peer.shake_hands();
    peer.read(1);
    peer.write(bytes({0, 100, 0, 0, 0, 0, 0, 0, 0}) + "only this much");  // ready; 100 bytes
    peer.drain();
  });
  auto client = connect_client(server.port());
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->get("k", kTimeout).status().code(), StatusCode::kDeadlineExceeded);
}

TEST(StoreClientFaults, HugeLengthIsAViolationAndAllocatesNothing) {
  ScriptedServer server([](ScriptedPeer& peer, int) {
    peer.shake_hands();
    peer.read(1);
    peer.write(bytes({0, 0, 0, 0, 0, 0, 0, 0, 0x40}));  // ready; 2^62 bytes
    peer.drain();
  });
  auto client = connect_client(server.port());
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->get("k").status().code(), StatusCode::kPeerViolation);
}

TEST(StoreClientFaults, BrokenConnectionIsReplacedForTheNextCall) {
  ScriptedServer server([](ScriptedPeer& peer, int number) {
    peer.shake_hands();
    peer.read(1);
    if (number == 0) return peer.reset();
    peer.write(bytes({7, 0, 0, 0, 0, 0, 0, 0}));
    peer.drain();
  });
  auto client = connect_client(server.port());
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->add("k", 1).status().code(), StatusCode::kUnavailable);
  const auto sum = (*client)->add("k", 1);
  ASSERT_TRUE(sum.ok()) << sum.status().message();
  EXPECT_EQ(*sum, 7);
}

// A client waits for the confirmation for 100 ms. On a busy machine one of several attempts must
// have it.
TEST(StoreClientFaults, ReleaseBeforeTheCancelConfirmationIsASuccess) {
  bool is_released = false;
  for (int attempt = 0; attempt < 20 && !is_released; ++attempt) {
    ScriptedServer server([](ScriptedPeer& peer, int) {
      peer.shake_hands();
      peer.read(1 + 8 + 8 + 2);  // WAIT of one key, "/k"
      peer.read(1);              // CANCEL_WAIT
      peer.write(bytes({0, 1}));
      peer.read(1);
      peer.write(bytes({7, 0, 0, 0, 0, 0, 0, 0}));
      peer.drain();
    });
    auto client = connect_client(server.port());
    ASSERT_TRUE(client.ok());
    is_released = (*client)->wait(std::vector<std::string>{"k"}, kTimeout).ok();
    if (!is_released) continue;
    EXPECT_EQ(*(*client)->num_keys(), 7);  // on the same connection: nothing was left unread
  }
  EXPECT_TRUE(is_released);
}

// The server may handle two connections in any order, so no call may overtake a set that is not
// confirmed, and a call that is about to block confirms it first.
TEST(StoreClientFaults, NoCallOvertakesAnUnreadSet) {
  std::promise<std::string> behind_the_set;
  std::promise<void> overtaken;
  ScriptedServer server([&](ScriptedPeer& peer, int number) {
    peer.shake_hands();
    if (number > 0) return peer.drain();
    peer.read(1 + 8 + 2 + 8 + 1);  // SET of "/k" to "v"
    const std::string ping = peer.read(5);
    behind_the_set.set_value(ping);
    overtaken.get_future().wait();
    peer.write(ping.substr(1));
    peer.read(1 + 8 + 8 + 2);  // WAIT of "/k"
    peer.write(bytes({0}));
    peer.drain();
  });
  auto client = connect_client(server.port());
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE((*client)->set("k", "v").ok());
  auto waiting = std::async(std::launch::async,
                            [&] { return (*client)->wait(std::vector<std::string>{"k"}); });
  EXPECT_EQ(behind_the_set.get_future().get().front(), '\x0d');  // PING
  const Status check = (*client)->check(kKeys, kTimeout).status();
  EXPECT_EQ(check.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(check.message().find("an earlier call"), std::string::npos) << check.message();
  overtaken.set_value();
  EXPECT_TRUE(waiting.get().ok());
}

// The wait reaches its deadline before the server has read the set: the next call must not overtake
// the set on another connection.
TEST(StoreClientFaults, NoCallOvertakesASetBehindAWaitThatTimedOut) {
  for (const bool is_reset : {false, true}) {
    SCOPED_TRACE(is_reset);
    std::promise<void> overtaken;
    ScriptedServer server([&](ScriptedPeer& peer, int number) {
      peer.shake_hands();
      if (number == 0) {
        overtaken.get_future().wait();
        if (is_reset) return peer.reset();
      } else {
        peer.read(1);  // NUM_KEYS
        peer.write(bytes({7, 0, 0, 0, 0, 0, 0, 0}));
      }
      peer.drain();
    });
    auto client = connect_client(server.port());
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE((*client)->set("k", "v").ok());
    EXPECT_EQ((*client)->wait(kKeys, milliseconds(1)).code(), StatusCode::kDeadlineExceeded);
    for (int i = 0; i < 2; ++i) {
      const Status check = (*client)->check(kKeys, kTimeout).status();
      EXPECT_EQ(check.code(), StatusCode::kDeadlineExceeded);
      EXPECT_NE(check.message().find("an earlier call"), std::string::npos) << check.message();
    }
    overtaken.set_value();
    if (is_reset) {
      const Status lost = (*client)->num_keys().status();
      EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
      EXPECT_NE(lost.message().find("may be lost"), std::string::npos) << lost.message();
    }
    EXPECT_EQ(*(*client)->num_keys(), 7);
  }
}

TEST(StoreClientFaults, UnexpectedByteDoesNotReachTheNextCall) {
  std::promise<void> sent;
  ScriptedServer server([&](ScriptedPeer& peer, int number) {
    peer.shake_hands();
    if (number == 0) {
      peer.write("x");
      sent.set_value();
    } else {
      peer.read(1);
      peer.write(bytes({7, 0, 0, 0, 0, 0, 0, 0}));
    }
    peer.drain();
  });
  auto client = connect_client(server.port());
  ASSERT_TRUE(client.ok());
  sent.get_future().wait();
  EXPECT_EQ(*(*client)->num_keys(), 7);
}

}  // namespace
}  // namespace elastic
