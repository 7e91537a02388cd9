#include "os/net/stream_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>

#include "os/loop/clock.h"
#include "os/loop/wait.h"
#include "os/net/address.h"
#include "os/net/listener.h"

namespace elastic::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

WaitLimits within(Duration wait) { return {.deadline = monotonic_now() + wait}; }

// A listening socket on a free port of a loopback address.
struct LoopbackListener {
  UniqueFd fd;
  SocketAddress address;

  explicit LoopbackListener(const char* host = "127.0.0.1", int backlog = 8) {
    address = look_up(host, 0).value().front();
    fd.reset(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(fd.get(), address.get(), address.size), 0);
    EXPECT_EQ(::listen(fd.get(), backlog), 0);
    EXPECT_EQ(::getsockname(fd.get(), address.get(), &address.size), 0);
  }
  void await_connection() const {
    pollfd entry{.fd = fd.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
  }
  UniqueFd accept() { return UniqueFd(::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
};

TEST(Address, ParsesLiteralsOfBothFamilies) {
  struct Row {
    const char* host;
    const char* text;
  };
  for (const Row& row :
       {Row{"127.0.0.1", "127.0.0.1:80"}, Row{"::1", "[::1]:80"}, Row{"[::1]", "[::1]:80"},
        Row{"[127.0.0.2]", "127.0.0.2:80"}, Row{"::ffff:127.0.0.3", "127.0.0.3:80"}}) {
    SCOPED_TRACE(row.host);
    const auto found = look_up(row.host, 80);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->front().text(), row.text);
    EXPECT_EQ(found->front().port(), 80);
  }
}

TEST(Address, UnresolvableNameIsUnavailableSoThatItIsRetried) {
  const auto found = look_up("no-such-host.invalid", 80, within(seconds(60)));
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(found.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST(Address, LocalhostResolvesThroughTheResolverThread) {
  EXPECT_TRUE(look_up("localhost", 80, within(seconds(60))).ok());
}

TEST(StreamSocket, RefusedConnectionIsUnavailableAndNamesTheAddress) {
  const ReservedPort unused = *ReservedPort::open("", 0);
  const SocketAddress address = look_up("127.0.0.1", unused.port())->front();
  const auto socket = StreamSocket::connect(std::span(&address, 1), within(seconds(60)));
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(socket.status().message().find(address.text()), std::string::npos);
}

TEST(StreamSocket, RefusedAddressIsFollowedByTheNext) {
  LoopbackListener listener;
  const ReservedPort unused = *ReservedPort::open("", 0);
  const SocketAddress addresses[] = {look_up("127.0.0.1", unused.port())->front(),
                                     listener.address};
  auto socket = StreamSocket::connect(addresses, within(seconds(60)));
  ASSERT_TRUE(socket.ok());
  EXPECT_EQ(socket->peer().text(), listener.address.text());
}

TEST(StreamSocket, SilentAddressIsFollowedByTheNext) {
  // A full backlog drops further handshakes, like an unreachable address.
  LoopbackListener silent("127.0.0.1", 0);
  auto filler = StreamSocket::connect(std::span(&silent.address, 1), within(seconds(60)));
  ASSERT_TRUE(filler.ok());
  silent.await_connection();
  LoopbackListener listener;
  const SocketAddress addresses[] = {silent.address, listener.address};
  auto socket = StreamSocket::connect(addresses, within(seconds(60)));
  ASSERT_TRUE(socket.ok());
  EXPECT_EQ(socket->peer().text(), listener.address.text());
}

class ConnectedSocket : public ::testing::Test {
 protected:
  LoopbackListener listener_;
  StreamSocket socket_ =
      *StreamSocket::connect(std::span(&listener_.address, 1), within(seconds(60)));
};

TEST_F(ConnectedSocket, ReceiveEndsAtItsDeadline) {
  char byte;
  const Instant start = monotonic_now();
  const auto got = socket_.receive(std::span(&byte, 1), within(milliseconds(30)));
  EXPECT_EQ(got.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(monotonic_now() - start, milliseconds(30));
}

TEST_F(ConnectedSocket, SendToAPeerThatDoesNotReadEndsAtItsDeadline) {
  const UniqueFd peer = listener_.accept();
  const std::string much(64u << 20, 'x');
  EXPECT_EQ(socket_.send(much, within(milliseconds(50))).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(ConnectedSocket, BlockedReceiveEndsWhenTheWakeDescriptorIsNotified) {
  Notifier wake = *Notifier::create();
  std::thread other([&] { wake.notify(); });
  char byte;
  WaitLimits limits = within(seconds(60));
  limits.wake_fd = wake.fd();
  const auto got = socket_.receive(std::span(&byte, 1), limits);
  other.join();
  EXPECT_EQ(got.status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(ConnectedSocket, InterruptCheckEndsALongWait) {
  const std::function<bool()> interrupted = [] { return true; };
  char byte;
  WaitLimits limits = within(seconds(60));
  limits.interrupted = &interrupted;
  const auto got = socket_.receive(std::span(&byte, 1), limits);
  EXPECT_EQ(got.status().code(), StatusCode::kCancelled);
}

TEST_F(ConnectedSocket, QuietSocketStopsBeingQuietWhenThePeerSendsOrCloses) {
  UniqueFd peer = listener_.accept();
  EXPECT_TRUE(socket_.is_quiet());
  ASSERT_EQ(::send(peer.get(), "x", 1, MSG_NOSIGNAL), 1);
  char byte;
  ASSERT_TRUE(socket_.receive(std::span(&byte, 1), within(seconds(60))).ok());
  EXPECT_TRUE(socket_.is_quiet());
  peer.reset();
  const auto end = socket_.receive(std::span(&byte, 1), within(seconds(60)));
  EXPECT_EQ(end.status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(socket_.is_quiet());
}

}  // namespace
}  // namespace elastic::os
