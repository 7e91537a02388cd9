// A round that a new coordinator adopts. The rest of a round's state is in the stories of
// tests/data/scenarios/rendezvous.

#include "core/rendezvous/round_state.h"

#include <gtest/gtest.h>

#include "support/node_info.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;
using core::Node;
using core::RoundState;
using core::Timer;

TEST(RoundState, AnAdoptedRoundHasOnlyMissingMembersAndNoLastCall) {
  Node a;
  Node b;
  a.info = support::node_info(1);
  b.info = support::node_info(2);
  RoundState earlier;
  earlier.begin(4, {&a, &b}, {Instant(1s), 0s});
  RoundState round;
  round.arm(Timer::kLastCall, {Instant(9s), 0s});
  round.adopt(earlier.record, {Instant(2s), 0s});
  EXPECT_EQ(round.record, earlier.record);
  EXPECT_EQ(round.missing, 2);
  EXPECT_FALSE(round.is_armed(Timer::kLastCall));
}

}  // namespace
}  // namespace elastic::test
