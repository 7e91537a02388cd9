#include "os/net/listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "os/loop/event_loop.h"
#include "support/loop_group.h"

namespace elastic::os {
namespace {

using namespace std::chrono_literals;
using Outcome = ListenerProbe::Outcome;
using ::testing::ElementsAre;

UniqueFd connect_to(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), address.get(), address.size), 0);
  return fd;
}

Listener::AcceptStatus accept_next(Listener* listener, UniqueFd* accepted) {
  pollfd entry{.fd = listener->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 60'000), 1) << "no connection in 60 s";
  return listener->accept(accepted);
}

int option_of(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, option, &value, &size), 0);
  return value;
}

TEST(Listener, AcceptedConnectionsInheritTheOptionsAndDoNotBlock) {
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const UniqueFd client = connect_to(listener->address());
  UniqueFd accepted;
  ASSERT_EQ(accept_next(&*listener, &accepted), Listener::AcceptStatus::kAccepted);
  EXPECT_EQ(option_of(accepted.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option_of(accepted.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option_of(accepted.get(), IPPROTO_TCP, TCP_KEEPIDLE), 60);
  char byte;
  EXPECT_EQ(::recv(accepted.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(listener->accept(&accepted), Listener::AcceptStatus::kEmpty);
}

TEST(Listener, LeavesTheReservedDescriptorsToTheProcess) {
  constexpr int kLimit = 128, kReserved = 32;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  listener->reserve_descriptors(kReserved);
  std::vector<UniqueFd> clients, accepted;
  for (int i = 0; i < kLimit; ++i) clients.push_back(connect_to(listener->address()));
  // The clients count as little as possible: theirs are the highest numbers from here on.
  for (UniqueFd& client : clients) {
    client.reset(::fcntl(client.get(), F_DUPFD_CLOEXEC, 2 * kLimit));
  }
  rlimit low = before;
  low.rlim_cur = kLimit;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  Listener::AcceptStatus status{};
  for (int i = 0; i < kLimit; ++i) {
    UniqueFd one;
    status = accept_next(&*listener, &one);
    if (status != Listener::AcceptStatus::kAccepted) break;
    accepted.push_back(std::move(one));
  }
  EXPECT_EQ(status, Listener::AcceptStatus::kExhausted);
  EXPECT_GT(accepted.size(), kLimit / 2u);
  std::vector<UniqueFd> rest;
  for (int i = 0; i < kReserved - 2; ++i) {
    rest.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_TRUE(rest.back().valid()) << i;
  }
  rest.clear();
  accepted.pop_back();
  accepted.pop_back();
  UniqueFd one;
  EXPECT_EQ(accept_next(&*listener, &one), Listener::AcceptStatus::kAccepted);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Listener, LiteralIpv6AnyDoesNotTakeIpv4) {
  // Another process may use the same port for IPv4, but not for every attempt.
  constexpr int kPortsMax = 50;
  bool both = false;
  for (int i = 0; i < kPortsMax && !both; ++i) {
    auto v6 = Listener::open("::", 0);
    if (!v6.ok()) GTEST_SKIP() << "no IPv6 here: " << v6.status().message();
    both = Listener::open("0.0.0.0", v6->address().port()).ok();
  }
  EXPECT_TRUE(both);
}

TEST(Listener, CheckReportsTheSameErrorAsOpen) {
  const auto hold = ReservedPort::open("", 0);  // no other program takes the port when it is free
  ASSERT_TRUE(hold.ok());
  const std::uint16_t port = hold->port();
  auto listener = Listener::open("", port);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(Listener::check("127.0.0.1", port).code(), StatusCode::kUnavailable);
  EXPECT_EQ(Listener::check("", port).code(), StatusCode::kUnavailable);
  EXPECT_EQ(Listener::check("192.0.2.1", port).code(), StatusCode::kInvalidArgument);
  listener->close();
  EXPECT_TRUE(Listener::check("127.0.0.1", port).ok());
  EXPECT_TRUE(Listener::check("", port).ok());
}

TEST(Listener, PortIsFreeAfterCloseAlthoughConnectionsWereOpen) {
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const UniqueFd client = connect_to(listener->address());
  UniqueFd accepted;
  ASSERT_EQ(accept_next(&*listener, &accepted), Listener::AcceptStatus::kAccepted);
  const std::uint16_t port = listener->address().port();
  listener->close();
  accepted.reset();  // closed first, so this end enters TIME_WAIT
  EXPECT_TRUE(Listener::open("127.0.0.1", port).ok());
}

class ListenerProbeTest : public testing::Test {
 protected:
  void watch(const SocketAddress& address) {
    watch_ = std::make_unique<ListenerProbe>(loop.get(), address, 1s,
                                             [this](Outcome found) { reports.push_back(found); });
  }
  bool await(std::size_t count) {
    return group.run_until([&] { return reports.size() >= count; });
  }

  support::LoopGroup group;
  const std::unique_ptr<EventLoop> loop = *EventLoop::create(&group);
  Result<Listener> listener = Listener::open("127.0.0.1", 0);
  std::vector<Outcome> reports;

 private:
  std::unique_ptr<ListenerProbe> watch_;
};

TEST_F(ListenerProbeTest, ReportsTheEndOfTheLastHolder) {
  watch(listener->address());
  ASSERT_TRUE(await(1));
  UniqueFd copy(::dup(listener->fd()));  // as of another process
  listener->close();
  group.run_until([] { return false; }, 10s);
  EXPECT_THAT(reports, ElementsAre(Outcome::kAnswered));
  copy.reset();
  ASSERT_TRUE(await(2));
  EXPECT_THAT(reports, ElementsAre(Outcome::kAnswered, Outcome::kRefused));
}

TEST_F(ListenerProbeTest, ReportsARefusal) {
  const SocketAddress address = listener->address();
  listener->close();
  watch(address);
  ASSERT_TRUE(await(1));
  EXPECT_THAT(reports, ElementsAre(Outcome::kRefused));
}

TEST_F(ListenerProbeTest, AnOwnerThatAcceptsAndClosesLives) {
  watch(listener->address());
  ASSERT_TRUE(await(1));
  UniqueFd accepted;
  ASSERT_EQ(listener->accept(&accepted), Listener::AcceptStatus::kAccepted);
  accepted.reset();
  ASSERT_TRUE(await(2));
  EXPECT_THAT(reports, ElementsAre(Outcome::kAnswered, Outcome::kUnknown));
}

// No kernel connects to it, whatever its routes are.
TEST_F(ListenerProbeTest, AnAddressThatCannotBeReachedIsUnknown) {
  auto address = *parse_address("255.255.255.255");
  address.set_port(9);
  watch(address);
  ASSERT_TRUE(await(1));
  EXPECT_THAT(reports, ElementsAre(Outcome::kUnknown));
}

class ReservedPortOn : public ::testing::TestWithParam<const char*> {};

TEST_P(ReservedPortOn, AServerCanBindTheReservedPortRepeatedly) {
  auto hold = ReservedPort::open(GetParam(), 0);
  ASSERT_TRUE(hold.ok()) << hold.status().message();
  ASSERT_NE(hold->port(), 0);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_TRUE(Listener::open("127.0.0.1", hold->port()).ok());
    EXPECT_TRUE(Listener::open("", hold->port()).ok()) << "as torch's store binds";
  }
}

INSTANTIATE_TEST_SUITE_P(ReservedPort, ReservedPortOn, ::testing::Values("127.0.0.1", ""),
                         [](const auto& test) {
                           return std::string(test.param).empty() ? "everywhere" : "loopback";
                         });

TEST(ReservedPort, CannotBeHeldWhileAnotherSocketListens) {
  auto listener = Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const auto hold = ReservedPort::open("127.0.0.1", listener->address().port());
  EXPECT_EQ(hold.status().code(), StatusCode::kUnavailable);
}

TEST(ReservedPort, RejectsAForeignAddress) {
  EXPECT_FALSE(ReservedPort::open("192.0.2.1", 0).ok());  // an address for documentation (RFC 5737)
}

TEST(PortOwner, FreePortHasNoOwner) {
  const auto hold = ReservedPort::open("", 0);  // no other program takes the port when it is free
  ASSERT_TRUE(hold.ok());
  const std::uint16_t port = hold->port();
  auto listener = Listener::open("127.0.0.1", port);
  ASSERT_TRUE(listener.ok());
  EXPECT_NE(describe_port_owner(port), "");
  listener->close();
  EXPECT_EQ(describe_port_owner(port), "");
}

}  // namespace
}  // namespace elastic::os
