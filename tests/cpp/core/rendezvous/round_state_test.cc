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
  round.adopt({.record = earlier.record}, {Instant(2s), 0s});
  EXPECT_EQ(round.record, earlier.record);
  EXPECT_EQ(round.missing, 2);
  EXPECT_FALSE(round.is_armed(Timer::kLastCall));
}

// After a takeover every node can ask for its round: that must not be a pass over all members each.
TEST(RoundState, TheRanksOfAllMembersAreComputedOnce) {
  Node a;
  Node b;
  a.info = support::node_info(1);
  b.info = support::node_info(2);
  a.info.local_world_size = 3;
  b.info.role = "reader";
  RoundState round;
  round.begin(1, {&a, &b}, {Instant(1s), 0s});
  EXPECT_EQ(round.ranks, core::ranks_of(round.members));
  const NodeAssignment own = round.assignment_of(b);
  EXPECT_EQ(own.base_rank, 3);
  EXPECT_EQ(own.role_world_size, b.info.local_world_size);
  round.member(0).local_world_size = 1;
  EXPECT_EQ(round.assignment_of(b).base_rank, 3) << "computed again";
}

}  // namespace
}  // namespace elastic::test
