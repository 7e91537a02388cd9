// The state of one round: its counters, and how it begins, is rebuilt and ends.

#include "core/rendezvous/round_state.h"

#include <gtest/gtest.h>

namespace elastic::test {
namespace {

using namespace std::chrono_literals;
using core::Node;
using core::RoundState;
using core::StoredInstant;
using core::Timer;
using rdzv::NodePhase;

Node node(std::uint64_t id, int local_world_size) {
  Node node;
  node.info.id = {id, id};
  node.info.name = "node" + std::to_string(id);
  node.info.address = "10.0.0." + std::to_string(id);
  node.info.local_world_size = local_world_size;
  return node;
}

StoredInstant instant(Duration since) { return {Instant(since), 0s}; }

TEST(RoundState, BeginSetsRecordMembersAndRanks) {
  Node a = node(1, 2);
  Node b = node(2, 3);
  b.info.hosts_coordinator = true;
  RoundState round;
  round.begin(7, {&a, &b}, instant(1s));
  EXPECT_TRUE(round.is_running);
  EXPECT_EQ(round.record.round, 7u);
  EXPECT_EQ(round.record.nodes, 2);
  EXPECT_EQ(round.record.world_size, 5);
  EXPECT_EQ(round.record.master_addr, "10.0.0.1");
  EXPECT_EQ(round.record.coordinator_rank, 1);
  EXPECT_EQ(round.member(1).name, "node2");
  EXPECT_EQ(round.assignment_of(b).base_rank, 2);
}

TEST(RoundState, SucceedsWhenEveryMemberHasFinishedOrLeftAfterFinishing) {
  Node a = node(1, 1);
  Node b = node(2, 1);
  RoundState round;
  round.begin(1, {&a, &b}, instant(1s));
  round.count(a, +1);
  round.count(b, +1);
  EXPECT_TRUE(round.has_workers());
  for (Node* one : {&a, &b}) {
    EXPECT_FALSE(round.has_succeeded());
    round.count(*one, -1);
    one->phase = NodePhase::kDone;
    one->done_round = 1;
    round.count(*one, +1);
  }
  EXPECT_TRUE(round.has_succeeded());
  EXPECT_FALSE(round.has_workers());
  round.count(b, -1);  // it leaves
  ++round.finishers_departed;
  EXPECT_TRUE(round.has_succeeded());
}

TEST(RoundState, AnAdoptedRoundHasOnlyMissingMembers) {
  Node a = node(1, 1);
  Node b = node(2, 1);
  RoundState earlier;
  earlier.begin(4, {&a, &b}, instant(1s));
  RoundState round;
  round.arm(Timer::kLastCall, instant(9s));
  round.adopt(earlier.record, instant(2s));
  EXPECT_EQ(round.record, earlier.record);
  EXPECT_EQ(round.missing, 2);
  EXPECT_TRUE(round.has_workers());
  EXPECT_FALSE(round.is_armed(Timer::kLastCall));
  round.member(0) = earlier.member(0);
  round.member(1).fate = core::MemberFate::kLost;
  round.count_missing();
  EXPECT_EQ(round.missing, 0);
  EXPECT_EQ(round.lost_names(), std::vector<std::string>{"the node of rank 1"});
}

TEST(RoundState, ATimerIsTakenOnceWhenItIsDue) {
  RoundState round;
  round.arm(Timer::kShrink, instant(3s));
  EXPECT_FALSE(round.take_due(Timer::kShrink, Instant(2s)));
  EXPECT_TRUE(round.take_due(Timer::kShrink, Instant(3s)));
  EXPECT_FALSE(round.take_due(Timer::kShrink, Instant(4s)));
  EXPECT_FALSE(round.is_armed(Timer::kShrink));
}

}  // namespace
}  // namespace elastic::test
