#include "host/store/round_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "os/loop/event_loop.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReachProbeTest : public ::testing::Test {
 protected:
  void begin(const std::string& host, std::uint16_t port, Duration limit) {
    probe_.begin(host, port, limit, [this](const std::string& why) { failures_.push_back(why); });
  }
  // Whether the probe has connected to it, since the last call.
  bool accepts(os::Listener* listener) {
    group_.settle();
    os::UniqueFd fd;
    os::SocketAddress remote;
    return listener->accept(&fd, &remote) == os::Listener::AcceptStatus::kAccepted;
  }

  support::LoopGroup group_;
  const std::unique_ptr<os::EventLoop> loop_ = *os::EventLoop::create(&group_);
  ReachProbe probe_{loop_.get()};
  const os::ReservedPort unused_ = *os::ReservedPort::open("127.0.0.1", 0);
  std::vector<std::string> failures_;
};

TEST_F(ReachProbeTest, ConnectsOnceToAnAddressThatListens) {
  auto listener = os::Listener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  begin("127.0.0.1", listener->address().port(), 60s);
  EXPECT_TRUE(accepts(&*listener));
  group_.advance(2min);
  EXPECT_FALSE(accepts(&*listener));
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ReachProbeTest, RefusalIsTriedAgainUntilTheLimit) {
  begin("127.0.0.1", unused_.port(), 600ms);
  EXPECT_TRUE(group_.run_until([&] { return !failures_.empty(); }, 600ms));
  group_.advance(1min);
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("127.0.0.1:" + std::to_string(unused_.port()))));
}

TEST_F(ReachProbeTest, RefusalThatEndsInTimeIsNoFailure) {
  begin("127.0.0.1", unused_.port(), 60s);
  group_.advance(59s);
  auto listener = os::Listener::open("127.0.0.1", unused_.port());
  ASSERT_TRUE(listener.ok());
  group_.advance(1min);
  EXPECT_TRUE(accepts(&*listener));
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ReachProbeTest, CancelledOrUnresolvedIsNotJudged) {
  begin("127.0.0.1", unused_.port(), 100ms);
  probe_.cancel();
  group_.advance(1min);
  begin("no-such-host.invalid", 1, 100ms);
  group_.advance(1min);
  EXPECT_THAT(failures_, IsEmpty());
}

}  // namespace
}  // namespace elastic::host
