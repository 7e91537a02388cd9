// A state is logged when it has settled.

#include "host/base/settled_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SettledLine, StepsOfAChangeAreNotLogged) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("log", &group);
  std::vector<std::string> logged;
  SettledLine line(&thread->loop(), [&](const std::string& text) { logged.push_back(text); });
  line.set("survives nothing");
  group.advance(SettledLine::kDelay / 2);
  line.set("survives a loss");
  EXPECT_THAT(logged, IsEmpty());
  group.advance(SettledLine::kDelay / 2);
  EXPECT_THAT(logged, ElementsAre("survives a loss")) << "a change that follows delays nothing";
  line.set("survives nothing");
  line.set("survives a loss");
  group.advance(2 * SettledLine::kDelay);
  EXPECT_THAT(logged, ElementsAre("survives a loss")) << "that has been logged";
  line.set("survives nothing");
  group.advance(SettledLine::kDelay);
  EXPECT_THAT(logged, ElementsAre("survives a loss", "survives nothing"));
}

}  // namespace
}  // namespace elastic::host
