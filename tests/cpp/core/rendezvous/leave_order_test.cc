// When a node leaves whose process may serve the store of the last round.

#include "core/rendezvous/leave_order.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace elastic::core {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow(1h);
constexpr LeaveOrder::Node kNeeded{
    .is_job_over = true, .has_workers = true, .serves_store = true, .nodes = 2};

TEST(LeaveOrder, ANodeWhoseStoreIsNotNeededLeavesAtOnce) {
  for (const auto change : {+[](LeaveOrder::Node* one) { one->is_job_over = false; },
                            +[](LeaveOrder::Node* one) { one->has_workers = false; },
                            +[](LeaveOrder::Node* one) { one->serves_store = false; },
                            +[](LeaveOrder::Node* one) { one->nodes = 1; }}) {
    LeaveOrder::Node node = kNeeded;
    change(&node);
    LeaveOrder order;
    EXPECT_FALSE(order.has_begun());
    EXPECT_FALSE(order.begin(node, 10s, kNow));
    EXPECT_EQ(order.tick(kNow), 10s);
    EXPECT_EQ(order.tick(kNow), std::nullopt) << "once";
    EXPECT_TRUE(order.has_begun());
  }
}

TEST(LeaveOrder, TheOthersHaveHalfOfTheTime) {
  LeaveOrder order;
  EXPECT_TRUE(order.begin(kNeeded, 10s, kNow));
  EXPECT_EQ(order.next_deadline(), kNow + 5s);
  EXPECT_EQ(order.tick(kNow + 4s), std::nullopt);
  EXPECT_EQ(order.tick(kNow + 5s), 5s);
  EXPECT_EQ(order.next_deadline(), std::nullopt);
}

TEST(LeaveOrder, TheNodeLeavesWhenTheRoundIsOver) {
  LeaveOrder order;
  order.round_over(kNow);  // before it begins, that is no reason to leave
  EXPECT_EQ(order.next_deadline(), std::nullopt);
  order.begin(kNeeded, 10s, kNow);
  order.round_over(kNow + 1s);
  EXPECT_EQ(order.tick(kNow + 1s), 9s);
  order.round_over(kNow + 2s);
  EXPECT_EQ(order.tick(kNow + 2s), std::nullopt);
}

TEST(LeaveOrder, ALateLoopLeavesNoTime) {
  LeaveOrder order;
  order.begin(kNeeded, 10s, kNow);
  EXPECT_EQ(order.tick(kNow + 11s), 0s);
}

}  // namespace
}  // namespace elastic::core
