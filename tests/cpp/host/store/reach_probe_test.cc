#include "host/store/reach_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "os/loop/loop_thread.h"
#include "os/net/held_port.h"
#include "os/net/listener.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class ReachProbeTest : public ::testing::Test {
 protected:
  ReachProbeTest() : thread_(*os::LoopThread::start("test-probe")) {
    thread_->call([this] { probe_ = std::make_unique<ReachProbe>(&thread_->loop()); });
  }
  ~ReachProbeTest() override {
    thread_->call([this] { probe_.reset(); });
  }

  // The reason for which the address is not reached; not set if it is. With `cancelled`, the probe
  // is cancelled in the same iteration of the loop, before it can have dialled.
  std::future<std::string> begin(const std::string& host, std::uint16_t port, Duration limit,
                                 bool cancelled = false) {
    auto failed = promises_.emplace_back(std::make_shared<std::promise<std::string>>());
    thread_->call([&] {
      probe_->begin(host, port, limit,
                    [failed](const std::string& why) { failed->set_value(why); });
      if (cancelled) probe_->cancel();
    });
    return failed->get_future();
  }

  std::vector<std::shared_ptr<std::promise<std::string>>> promises_;  // kept: none is broken
  std::unique_ptr<os::LoopThread> thread_;
  std::unique_ptr<ReachProbe> probe_;
};

void await_connection(os::Listener* listener) {
  pollfd entry{.fd = listener->fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&entry, 1, 60'000), 1) << "no connection in 60 s";
  os::UniqueFd fd;
  os::SocketAddress remote;
  ASSERT_EQ(listener->accept(&fd, &remote), os::Listener::AcceptStatus::kAccepted);
}

TEST_F(ReachProbeTest, ConnectsOnceToAnAddressThatListens) {
  auto listener = os::Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  auto failed = begin("127.0.0.1", listener->address().port(), 60s);
  await_connection(&*listener);
  EXPECT_EQ(failed.wait_for(1s), std::future_status::timeout);  // four times the pace of attempts
  os::UniqueFd fd;
  os::SocketAddress remote;
  EXPECT_EQ(listener->accept(&fd, &remote), os::Listener::AcceptStatus::kEmpty);
}

TEST_F(ReachProbeTest, RefusalIsTriedAgainUntilTheLimit) {
  const auto unused = os::HeldPort::open("127.0.0.1", 0);
  ASSERT_TRUE(unused.ok());
  const std::uint16_t port = unused->port();
  auto failed = begin("127.0.0.1", port, 600ms);
  EXPECT_THAT(failed.get(), HasSubstr("127.0.0.1:" + std::to_string(port)));
}

TEST_F(ReachProbeTest, RefusalThatEndsInTimeIsNoFailure) {
  const auto unused = os::HeldPort::open("127.0.0.1", 0);
  ASSERT_TRUE(unused.ok());
  const std::uint16_t port = unused->port();
  auto failed = begin("127.0.0.1", port, 60s);
  auto listener = os::Listener::open("127.0.0.1", port);
  ASSERT_TRUE(listener.ok());
  await_connection(&*listener);
  EXPECT_EQ(failed.wait_for(300ms), std::future_status::timeout);
}

TEST_F(ReachProbeTest, CancelledOrUnresolvedIsNotJudged) {
  const auto unused = os::HeldPort::open("127.0.0.1", 0);
  ASSERT_TRUE(unused.ok());
  auto cancelled = begin("127.0.0.1", unused->port(), 100ms, /*cancelled=*/true);
  auto unresolved = begin("no-such-host.invalid", 1, 100ms);
  EXPECT_EQ(unresolved.wait_for(500ms), std::future_status::timeout);
  EXPECT_EQ(cancelled.wait_for(0ms), std::future_status::timeout);
}

}  // namespace
}  // namespace elastic::host
