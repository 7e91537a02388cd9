#include "os/net/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/loop_group.h"

namespace elastic::os {
namespace {

using namespace std::chrono_literals;
using Found = ListenerWatch::Found;
using ::testing::ElementsAre;

class ListenerWatchTest : public testing::Test {
 protected:
  void watch(const SocketAddress& address) {
    watch_ = std::make_unique<ListenerWatch>(loop.get(), address, 1s,
                                             [this](Found found) { reports.push_back(found); });
  }
  bool await(std::size_t count) {
    return group.run_until([&] { return reports.size() >= count; });
  }

  support::LoopGroup group;
  const std::unique_ptr<EventLoop> loop = *EventLoop::create(&group);
  Result<Listener> listener = Listener::open("127.0.0.1", 0);
  std::vector<Found> reports;

 private:
  std::unique_ptr<ListenerWatch> watch_;
};

TEST_F(ListenerWatchTest, ReportsTheEndOfTheLastHolder) {
  watch(listener->address());
  ASSERT_TRUE(await(1));
  UniqueFd copy(::dup(listener->fd()));  // as of another process
  listener->close();
  group.run_until([] { return false; }, 10s);
  EXPECT_THAT(reports, ElementsAre(Found::kAnswered));
  copy.reset();
  ASSERT_TRUE(await(2));
  EXPECT_THAT(reports, ElementsAre(Found::kAnswered, Found::kRefused));
}

TEST_F(ListenerWatchTest, ReportsARefusal) {
  const SocketAddress address = listener->address();
  listener->close();
  watch(address);
  ASSERT_TRUE(await(1));
  EXPECT_THAT(reports, ElementsAre(Found::kRefused));
}

TEST_F(ListenerWatchTest, AnOwnerThatAcceptsAndClosesLives) {
  watch(listener->address());
  ASSERT_TRUE(await(1));
  UniqueFd accepted;
  ASSERT_EQ(listener->accept(&accepted), Listener::AcceptStatus::kAccepted);
  accepted.reset();
  ASSERT_TRUE(await(2));
  EXPECT_THAT(reports, ElementsAre(Found::kAnswered, Found::kUnknown));
}

// No kernel connects to it, whatever its routes are.
TEST_F(ListenerWatchTest, AnAddressThatCannotBeReachedIsUnknown) {
  auto address = *parse_address("255.255.255.255");
  address.set_port(9);
  watch(address);
  ASSERT_TRUE(await(1));
  EXPECT_THAT(reports, ElementsAre(Found::kUnknown));
}

}  // namespace
}  // namespace elastic::os
