// What an agent joins with and waits for of the snapshots of its ranks.

#include "core/agent/agent_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/agent/agent_machine_fixture.h"
#include "core/workers/worker_exits.h"

namespace elastic::core {
namespace {

using ::testing::HasSubstr;

class AgentSnapshotTest : public AgentMachineTest {
 protected:
  void hold(std::int64_t step_of_both) {
    snapshot::HeldEvent event;
    for (const int rank : {0, 1}) {
      event.held.push_back({.rank = rank, .world_size = 2, .step = step_of_both});
    }
    step(event);
  }
  std::vector<HeldState> joined_with() {
    const auto sent = one<Send>();
    const auto* join = sent ? std::get_if<rdzv::Join>(&sent->statement) : nullptr;
    return join != nullptr ? join->node.held : std::vector<HeldState>{{.rank = 99}};
  }
  // A worker has failed, after the other one had reported this step.
  void end_round(std::int64_t last_step) {
    WorkerExit other = exited(1);
    other.last_step = last_step;
    other.stopped_by_us = true;
    exit(0, exited(1));
    restart(rdzv::RestartCause::kWorkerFailed);
    exit(1, other);
    step(agent_event::ProcessesEnded{});
    step(agent_event::FailuresExamined{});
    step(agent_event::StoreOpened{std::uint16_t{4711}});
  }
};

TEST_F(AgentSnapshotTest, AJoinHasWhatIsHeldAndTheRoundSaysFromWhichStepItContinues) {
  run();
  hold(5);
  EXPECT_EQ(agent_->saved_step(), 5);
  end_round(7);
  EXPECT_EQ(joined_with().size(), 2U);
  form_round(1, {.step = 5});
  const snapshot::KeepRequest kept{
      .point = {.step = 5}, .world_size = 2, .base_rank = 0, .ranks = 2};
  EXPECT_EQ(one<snapshot::node_action::Keep>()->request, kept);
  EXPECT_EQ(reported(AgentEvent::Kind::kNotice),
            "round 1: continued at step 5 from memory: 2 steps lost");
}

TEST_F(AgentSnapshotTest, WorkersStartWhenTheStatesOfOtherNodesAreHere) {
  step(RendezvousReady{"n", "10.0.0.1"});
  step(snapshot::CopiesEvent{{{.rank = 0, .world_size = 4, .step = 5, .is_copy = true}}, "a:1"});
  const std::vector<HeldSource> sources = {{2, 1, "10.0.0.2:4000"}, {3, 1, "10.0.0.2:4000"}};
  form_round(2, {.step = 5}, sources);
  ASSERT_TRUE(has<snapshot::node_action::Fetch>());
  EXPECT_EQ(one<snapshot::node_action::Fetch>()->sources, sources);
  EXPECT_THAT(reported(AgentEvent::Kind::kProgress),
              HasSubstr("the state after step 5 of rank 2, 3 from 10.0.0.2:4000"));
  step(agent_event::FilesOpened{});
  EXPECT_FALSE(has<agent_action::StartWorkers>());
  step(agent_event::SnapshotsFetched{});
  EXPECT_TRUE(has<agent_action::StartWorkers>());
}

// Without a charge: the next round continues from another step.
TEST_F(AgentSnapshotTest, AStateThatCannotBeHadEndsTheRoundAndTheNodeJoinsWithoutIt) {
  for (const bool has_source : {true, false}) {
    use(options());
    round_ = 0;
    step(RendezvousReady{"n", "10.0.0.1"});
    std::vector<HeldSource> sources = {{2, 1, "10.0.0.2:4000"}, {3, 1, "10.0.0.2:4000"}};
    if (!has_source) sources.pop_back();
    form_round(2, {.step = 5}, sources);
    if (has_source) {
      step(agent_event::FilesOpened{});
      step(agent_event::SnapshotsFetched{Status(StatusCode::kUnavailable, "it broke")});
      EXPECT_THAT(reported(AgentEvent::Kind::kNotice), HasSubstr("it broke"));
    }
    EXPECT_FALSE(has<agent_action::StartWorkers>());
    ASSERT_TRUE(has<agent_action::CancelStart>());
    step(agent_event::StartCancelled{});
    step(agent_event::StoreOpened{std::uint16_t{4711}});
    const std::vector<HeldState> expected = {{.rank = -1, .world_size = 4, .step = 5}};
    EXPECT_EQ(joined_with(), expected);
    restart(rdzv::RestartCause::kRejoin);  // the order to end the round crosses the join
    step(agent_event::StoreOpened{std::uint16_t{4711}});
    EXPECT_EQ(joined_with(), expected);
    form_round(2);
    step(agent_event::FilesOpened{});
    EXPECT_TRUE(has<agent_action::StartWorkers>());
  }
}

TEST_F(AgentSnapshotTest, AnOrderToStopEndsTheWaitForStates) {
  step(RendezvousReady{"n", "10.0.0.1"});
  form_round(2, {.step = 5}, {{2, 1, "a:1"}, {3, 1, "a:1"}});
  step(agent_event::FilesOpened{});
  restart(rdzv::RestartCause::kMemberLost);
  EXPECT_TRUE(has<agent_action::CancelStart>());
  step(agent_event::StartCancelled{});
  step(agent_event::SnapshotsFetched{Status(StatusCode::kUnavailable, "late")});
  EXPECT_FALSE(has<agent_action::StartWorkers>());
}

TEST_F(AgentSnapshotTest, ARoundWithoutAStepReleasesWhatIsHeld) {
  run();
  hold(5);
  end_round(7);
  form_round(1);
  EXPECT_EQ(one<snapshot::node_action::Keep>()->request.point.step, -1);
  EXPECT_THAT(reported(AgentEvent::Kind::kNotice), HasSubstr("no step is complete"));
}

TEST_F(AgentSnapshotTest, MemoryIsReleasedIfAWorkerWasKilledForLackOfIt) {
  run();
  hold(5);
  FailureFound found;
  found.worker.evidence.cause = FailureCause::kOutOfMemory;
  exit(0, exited(1));
  step(found);
  restart(rdzv::RestartCause::kWorkerFailed);
  exit(1, exited(1));
  step(agent_event::ProcessesEnded{});
  step(agent_event::FailuresExamined{});
  ASSERT_TRUE(has<snapshot::node_action::Keep>());
  EXPECT_EQ(one<snapshot::node_action::Keep>()->request, snapshot::KeepRequest{});
  EXPECT_THAT(reported(AgentEvent::Kind::kNotice), HasSubstr("for lack of memory"));
  step(agent_event::StoreOpened{std::uint16_t{4711}});
  EXPECT_THAT(joined_with(), ::testing::IsEmpty());
}

// They are of another training, even if it has the same steps in rounds of the same number.
TEST_F(AgentSnapshotTest, ANodeThatJoinsAnotherJobOfTheIdBringsNoSnapshotsToIt) {
  for (const bool is_displaced : {false, true}) {
    use(options());
    round_ = 0;
    run(2);
    hold(5);
    step(rdzv::Evicted{kSelf, round_, "why", is_displaced});
    for (const int worker : {0, 1}) {
      WorkerExit stopped = exited(1);
      stopped.stopped_by_us = true;
      exit(worker, stopped);
    }
    step(agent_event::ProcessesEnded{});
    step(agent_event::FailuresExamined{});
    EXPECT_EQ(has<snapshot::node_action::Keep>(), is_displaced);
    step(agent_event::StoreOpened{std::uint16_t{4711}});
    EXPECT_EQ(joined_with().size(), is_displaced ? 0U : 2U);
  }
}

// The guardian sets it aside for the ranks that have none of their own, and for other nodes.
TEST_F(AgentSnapshotTest, AReplicatedStateOfThisNodeIsShared) {
  run();
  hold(5);
  end_round(7);
  const HeldSource own{.rank = 1, .round = 0, .is_shared = true, .world_size = 2};
  form_round(2, {.step = 5, .round = 0, .kind = ResumeKind::kReplicated}, {own});
  ASSERT_TRUE(has<snapshot::node_action::Keep>());
  const snapshot::KeepRequest kept = one<snapshot::node_action::Keep>()->request;
  EXPECT_EQ(kept.shared_rank, 1);
  EXPECT_EQ(kept.shared_world_size, 2);
  EXPECT_FALSE(has<snapshot::node_action::Fetch>());
}

TEST_F(AgentSnapshotTest, AReplicatedStateOfAnotherNodeComesOnceForAllRanks) {
  step(RendezvousReady{"n", "10.0.0.1"});
  const ResumePoint point{.step = 5, .round = 0, .kind = ResumeKind::kReplicated};
  const std::vector<HeldSource> sources = {
      {.rank = 3, .round = 0, .address = "10.0.0.2:4000", .is_shared = true, .world_size = 8}};
  form_round(2, point, sources);
  ASSERT_TRUE(has<snapshot::node_action::Fetch>());
  EXPECT_EQ(one<snapshot::node_action::Fetch>()->sources, sources);
  EXPECT_EQ(one<snapshot::node_action::Keep>()->request.shared_rank, -1);
  step(agent_event::FilesOpened{});
  EXPECT_FALSE(has<agent_action::StartWorkers>());
  step(agent_event::SnapshotsFetched{});
  EXPECT_TRUE(has<agent_action::StartWorkers>());
}

TEST_F(AgentSnapshotTest, AReplicatedStateThatNoNodeSendsEndsTheRound) {
  const ResumePoint point{.step = 5, .round = 0, .kind = ResumeKind::kReplicated};
  const HeldSource gone{.rank = 3, .round = 0, .is_shared = true, .world_size = 8};
  for (const auto& sources : {std::vector<HeldSource>{}, std::vector<HeldSource>{gone}}) {
    use(options());
    round_ = 0;
    step(RendezvousReady{"n", "10.0.0.1"});
    form_round(2, point, sources);
    EXPECT_TRUE(has<agent_action::CancelStart>());
    EXPECT_THAT(reported(AgentEvent::Kind::kNotice), HasSubstr("the node that had it is gone"));
  }
}

// The coordinator that knew it is gone: not all ranks of this node would have it.
TEST_F(AgentSnapshotTest, AReplicatedStateWithoutASourceIsOnlyForARankThatHasItsOwn) {
  for (const int ranks : {1, 2}) {
    use(options());
    round_ = 0;
    run();
    snapshot::HeldEvent event;
    for (int rank = 0; rank < ranks; ++rank) {
      event.held.push_back({.rank = rank, .world_size = 2, .step = 5, .is_replicated = true});
    }
    step(event);
    end_round(7);
    form_round(1, {.step = 5, .round = 0, .kind = ResumeKind::kReplicated});
    EXPECT_EQ(has<agent_action::CancelStart>(), ranks == 1);
  }
}

// It has step 5 of another round, which is of another training.
TEST_F(AgentSnapshotTest, OnlyASnapshotOfTheSameRoundIsTheStateOfARank) {
  run();
  hold(5);
  end_round(7);
  form_round(1, {.step = 5, .round = 3}, {{0, 3, "10.0.0.2:4000"}, {1, 3, "10.0.0.2:4000"}});
  EXPECT_TRUE(has<snapshot::node_action::Fetch>());
}

TEST_F(AgentSnapshotTest, WithoutSnapshotsNothingIsSentOrReported) {
  run();
  end_round(7);
  EXPECT_THAT(joined_with(), ::testing::IsEmpty());
  form_round(1);
  EXPECT_FALSE(has<snapshot::node_action::Keep>());
  EXPECT_EQ(reported(AgentEvent::Kind::kNotice), "");
}

}  // namespace
}  // namespace elastic::core
