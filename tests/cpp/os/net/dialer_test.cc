#include "os/net/dialer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/loop/event_loop.h"
#include "os/net/address.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::os {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

SocketAddress address_of(const std::string& host, std::uint16_t port) {
  return look_up(host, port)->front();
}

// The result of dialing; nullopt: none before the deadline.
std::optional<Result<Dialer::Connection>> dial(std::vector<SocketAddress> addresses,
                                               Duration limit) {
  support::LoopGroup group;
  const auto loop = *EventLoop::create(&group);
  std::optional<Result<Dialer::Connection>> outcome;
  std::unique_ptr<Dialer> dialer;
  dialer = std::make_unique<Dialer>(loop.get(), std::move(addresses), Dialer::kPace,
                                    group.now() + limit, [&](Result<Dialer::Connection> result) {
                                      dialer.reset();  // allowed in the callback
                                      outcome = std::move(result);
                                    });
  group.run_until([&] { return outcome.has_value(); }, limit);
  return outcome;
}

TEST(Dialer, TakesTheFirstAddressThatAccepts) {
  const auto unused = ReservedPort::open("", 0);
  ASSERT_TRUE(unused.ok());
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const auto outcome = dial({address_of("127.0.0.1", unused->port()), listener->address()}, 1h);
  ASSERT_TRUE(outcome && outcome->ok());
  EXPECT_EQ((*outcome)->peer.text(), listener->address().text());
}

TEST(Dialer, FailsAsSoonAsEveryAddressFailed) {
  const auto unused = ReservedPort::open("", 0);
  ASSERT_TRUE(unused.ok());
  const std::uint16_t port = unused->port();
  const auto outcome = dial({address_of("127.0.0.1", port), address_of("127.0.0.2", port)}, 1h);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(outcome->status().message(), HasSubstr("127.0.0.2:" + std::to_string(port)));
}

TEST(Dialer, EndsAtTheDeadlineWithoutAnAnswer) {
  // A full accept queue drops connection requests, like an unreachable host.
  const UniqueFd door(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = address_of("127.0.0.1", 0);
  ASSERT_EQ(::bind(door.get(), address.get(), address.size), 0);
  ASSERT_EQ(::listen(door.get(), 0), 0);
  ASSERT_EQ(::getsockname(door.get(), address.get(), &address.size), 0);
  std::vector<std::optional<Result<Dialer::Connection>>> queue;
  for (int i = 0; i < 4; ++i) {
    queue.push_back(dial({address}, 3s));
    ASSERT_TRUE(queue.back());
    if (!queue.back()->ok()) break;
  }
  EXPECT_THAT(queue.back()->status().message(), HasSubstr("no answer for 3 s"));
}

}  // namespace
}  // namespace elastic::os
