#include "host/base/action_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

namespace elastic::host {
namespace {

TEST(ActionQueue, ExecutesWhatAnActionCausesBehindThoseThatWait) {
  ActionQueue<int> queue;
  std::vector<int> executed;
  std::optional<bool> inner;
  const auto execute = [&](int action) {
    executed.push_back(action);
    if (action == 1) inner = queue.run({3, 4}, [](int) { FAIL() << "not by the inner call"; });
  };
  EXPECT_TRUE(queue.run({1, 2}, execute));
  EXPECT_EQ(executed, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(inner, false);
  EXPECT_TRUE(queue.run({5}, execute));
  EXPECT_EQ(executed.back(), 5);
}

#ifndef NDEBUG
TEST(ActionQueueDeathTest, AnActionThatDestroysItsOwnerIsDetected) {
  auto queue = std::make_unique<ActionQueue<int>>();
  EXPECT_DEATH(queue->run({1}, [&](int) { queue.reset(); }), "broken invariant");
}
#endif

}  // namespace
}  // namespace elastic::host
