#include "host/gate/ended_hosts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <variant>
#include <vector>

#include "os/loop/clock.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

// Its time is over; the next one is twice as long.
TEST(EndedHosts, KeepAHostThatWasExcludedForTheNextJob) {
  Instant now = os::monotonic_now();
  gate::HostMemory hosts;
  std::vector<gate::HostAction> actions;
  hosts.step(gate::Exclude{"n9", "fan"}, now, &actions);
  EndedHosts ended;
  ended.keep("job", hosts, now);
  now += 2h;
  ended.keep("other job", gate::HostMemory(), now);
  EndedHosts restarted;
  ASSERT_TRUE(restarted.load(ended.stored(now), now).ok());
  gate::HostMemory again = restarted.take("job", now);
  EXPECT_FALSE(again.is_excluded("n9"));
  actions.clear();
  again.step(gate::Exclude{"n9", "fan"}, now, &actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<gate::Excluded>(actions[0]).times, 2);
}

TEST(EndedHosts, KeepNothingOfAJobWithoutOne) {
  EndedHosts ended;
  ended.keep("job", gate::HostMemory(), os::monotonic_now());
  EXPECT_TRUE(ended.stored(os::monotonic_now()).empty());
}

}  // namespace
}  // namespace elastic::host
