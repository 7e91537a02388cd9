#include "core/succession/early_joins.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;
using Verdict = EarlyJoins::Verdict;

constexpr Instant kNow{1h};

rdzv::Join join_of(std::uint64_t id) {
  rdzv::Join join;
  join.node.id = {id, id};
  join.node.name = "node" + std::to_string(id);
  join.node.address = "10.0.0." + std::to_string(id);
  join.node.store_port = 20'000;
  join.settings.min_nodes = join.settings.max_nodes = 2;
  return join;
}

// The job of nodes 1 and 2, as another coordinator continues it from the store.
core::RendezvousMachine continued() {
  std::vector<core::RendezvousAction> actions;
  core::RendezvousMachine former(join_of(1).settings, kNow, Duration::zero());
  former.step(join_of(1), kNow, &actions);
  former.step(join_of(2), kNow, &actions);
  core::RendezvousMachine machine(join_of(1).settings, kNow, Duration::zero());
  EXPECT_TRUE(machine.succeed(former.encode(), {.term = 2}, kNow).ok());
  EXPECT_EQ(machine.record().round, 1u);
  return machine;
}

TEST(EarlyJoins, ANewcomerWaitsUntilANodeOfTheFormerJobIsBack) {
  const core::RendezvousMachine machine = continued();
  EarlyJoins joins;
  const auto limit = joins.begin(machine);
  ASSERT_TRUE(limit.has_value());
  EXPECT_LT(*limit, machine.takeover_limit()) << "it ends before the nodes count as lost";
  EXPECT_EQ(joins.judge(machine, join_of(7)), Verdict::kWait);
  EXPECT_EQ(joins.judge(machine, join_of(7)), Verdict::kKnown);
  EXPECT_TRUE(joins.take().empty());

  rdzv::Resume resume;
  resume.node = join_of(1).node;
  resume.last.emplace();
  EXPECT_EQ(joins.judge(machine, resume), Verdict::kEnter);
  const auto entering = joins.take();
  ASSERT_EQ(entering.size(), 1u);
  EXPECT_EQ(entering.front().node.id, join_of(7).node.id);
  EXPECT_EQ(joins.judge(machine, join_of(8)), Verdict::kEnter);
}

TEST(EarlyJoins, TheNextJobBeginsIfNoNodeComesBackInTime) {
  const core::RendezvousMachine machine = continued();
  EarlyJoins joins;
  (void)joins.begin(machine);
  EXPECT_EQ(joins.judge(machine, join_of(7)), Verdict::kWait);
  rdzv::Resume resume;  // its session was interrupted while it waited
  resume.node = join_of(7).node;
  EXPECT_EQ(joins.judge(machine, resume), Verdict::kKnown);
  EXPECT_EQ(joins.judge(machine, join_of(8)), Verdict::kWait);
  joins.forget(join_of(8).node.id);  // it leaves
  EXPECT_TRUE(joins.time_out().has_value());
  EXPECT_EQ(joins.take().size(), 1u);
  EXPECT_FALSE(joins.is_waiting());
}

TEST(EarlyJoins, TheFirstThatJoinsAfterThatTimeBeginsTheNextJob) {
  const core::RendezvousMachine machine = continued();
  EarlyJoins joins;
  (void)joins.begin(machine);
  EXPECT_FALSE(joins.time_out().has_value()) << "no node waits";
  EXPECT_EQ(joins.judge(machine, join_of(7)), Verdict::kBeginAnew);
  EXPECT_EQ(joins.judge(machine, join_of(8)), Verdict::kEnter);
}

TEST(EarlyJoins, ANodeOfTheFormerJobNeverWaits) {
  const core::RendezvousMachine machine = continued();
  for (const bool is_known : {true, false}) {
    EarlyJoins joins;
    (void)joins.begin(machine);
    rdzv::Join join = join_of(is_known ? 2 : 7);
    join.node.highest_round = is_known ? 0 : 1;
    EXPECT_EQ(joins.judge(machine, join), Verdict::kEnter);
  }
}

}  // namespace
}  // namespace elastic::succession
