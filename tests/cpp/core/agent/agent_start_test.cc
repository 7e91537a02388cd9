// How an agent joins and starts its workers, and whether they reach their store.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <memory>

#include "core/agent/agent_machine_fixture.h"

namespace elastic::core {
namespace {

using ::testing::HasSubstr;

class AgentStartTest : public AgentMachineTest {
 protected:
  static AgentMachineOptions with_reach_test() {
    AgentMachineOptions with = options();
    with.policy.agent.reach_timeout = seconds(30);
    return with;
  }
};

agent_event::StoreOpened without_port(StatusCode code) { return {Status(code, "no port")}; }

TEST_F(AgentStartTest, AJoinIsSentWithThePortOfTheNextStore) {
  step(RendezvousReady{"n", "10.0.0.1"});
  EXPECT_TRUE(has<OpenStore>());
  EXPECT_FALSE(has<Send>());
  step(agent_event::StoreOpened{std::uint16_t{4711}});
  ASSERT_TRUE(has<Send>());
  EXPECT_EQ(std::get<rdzv::Join>(one<Send>()->statement).node.store_port, 4711);
  EXPECT_TRUE(step(agent_event::StoreOpened{std::uint16_t{4712}}).actions_.empty());
}

TEST_F(AgentStartTest, AJoinWaitsForADescriptorForALimitedTime) {
  step(RendezvousReady{"n", "10.0.0.1"});
  for (Duration waited{}; waited < kPortLimit; waited += kPortPause) {
    step(without_port(StatusCode::kResourceExhausted));
    EXPECT_TRUE(actions_.empty());
    wait_for(kPortPause);
    EXPECT_TRUE(has<OpenStore>());
  }
  step(without_port(StatusCode::kResourceExhausted));
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, kExitSupervisionLost);
  EXPECT_EQ(one<Finish>()->result.message, "no port");
}

TEST_F(AgentStartTest, AJoinDoesNotWaitForAPortThatCannotBeBound) {
  step(RendezvousReady{"n", "10.0.0.1"});
  step(without_port(StatusCode::kInvalidArgument));
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, kExitCannotServe);
}

TEST_F(AgentStartTest, AJoinThatWaitsIsDroppedWhenTheNodeLeavesOrTheJobEnds) {
  for (const bool is_stopped : {true, false}) {
    use(options());
    step(RendezvousReady{"n", "10.0.0.1"});
    step(without_port(StatusCode::kResourceExhausted));
    if (is_stopped) {
      step(StopRequested{SIGTERM});
    } else {
      JobResult result;
      result.outcome = JobOutcome::kFailed;
      step(rdzv::Closed{kSelf, std::make_shared<const JobResult>(result)});
    }
    EXPECT_TRUE(has<Finish>());
    EXPECT_FALSE(agent_->next_deadline());
    EXPECT_TRUE(step(agent_event::StoreOpened{std::uint16_t{4711}}).actions_.empty());
  }
}

TEST_F(AgentStartTest, WorkersStartWhenTheirFilesExist) {
  step(RendezvousReady{"n", "10.0.0.1"});
  form_round();
  EXPECT_TRUE(has<StartGroup>());
  EXPECT_FALSE(has<agent_action::StartWorkers>());
  step(agent_event::FilesOpened{});
  EXPECT_TRUE(has<agent_action::StartWorkers>());
}

TEST_F(AgentStartTest, WithoutFilesTheNodeTakesNoPart) {
  step(RendezvousReady{"n", "10.0.0.1"});
  form_round();
  step(agent_event::FilesOpened{Status(StatusCode::kUnavailable, "no space left")});
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, kExitCannotLog);
  EXPECT_FALSE(has<agent_action::CancelStart>());
}

TEST_F(AgentStartTest, AStopBeforeTheFilesExistCancelsTheStart) {
  use(with_stacks());
  step(RendezvousReady{"n", "10.0.0.1"});
  form_round(2);
  restart();
  EXPECT_TRUE(has<agent_action::CancelStart>());
  EXPECT_FALSE(has<Stop>());
  EXPECT_FALSE(has<Collect>()) << "there are no stacks";
  ASSERT_TRUE(has<Report>());
  step(agent_event::StartCancelled{});
  ASSERT_TRUE(has<Send>());
  EXPECT_TRUE(std::holds_alternative<rdzv::Gone>(one<Send>()->statement));
  EXPECT_TRUE(has<OpenStore>()) << "it joins again";
  EXPECT_TRUE(step(agent_event::FilesOpened{}).actions_.empty());
}

TEST_F(AgentStartTest, AnEndBeforeTheFilesExistCancelsTheStart) {
  step(RendezvousReady{"n", "10.0.0.1"});
  form_round();
  step(SupervisionLost{"the guardian was killed"});
  EXPECT_TRUE(has<agent_action::CancelStart>());
  EXPECT_TRUE(has<Finish>());
  EXPECT_TRUE(step(agent_event::StartCancelled{}).actions_.empty());
}

// ---- The reach of the workers' store.

TEST_F(AgentStartTest, ANodeTestsWhetherItReachesTheStoreOfTheRound) {
  use(with_reach_test());
  step(RendezvousReady{"n", "10.0.0.1"});
  begin_round(2);
  ASSERT_TRUE(has<agent_action::ProbeStore>());
  EXPECT_EQ(one<agent_action::ProbeStore>()->limit, Duration(seconds(30)));
}

TEST_F(AgentStartTest, RankZeroTestsItsOwnStoreForAShortTimeAndReportsIt) {
  use(with_reach_test());
  step(RendezvousReady{"n", "10.0.0.1"});
  begin_round(1);
  ASSERT_TRUE(has<agent_action::ProbeStore>());
  EXPECT_EQ(one<agent_action::ProbeStore>()->limit, Duration(kOwnReachTimeout));
  step(agent_event::StoreUnreachable{"timed out"});
  EXPECT_THAT(reported(AgentEvent::Kind::kNotice), HasSubstr("(is its interface up?): timed out"));
  EXPECT_FALSE(has<agent_action::KillWorker>());
}

TEST_F(AgentStartTest, AStoreThatTheSessionReachesIsNotTested) {
  for (const std::uint16_t endpoint : {std::uint16_t{29500}, std::uint16_t{29400}}) {
    AgentMachineOptions with = with_reach_test();
    with.endpoint_port = endpoint;
    use(with);
    round_ = 0;
    step(RendezvousReady{"n", "10.0.0.1"});
    begin_round(2);
    EXPECT_EQ(has<agent_action::ProbeStore>(), endpoint != 29500);
  }
}

}  // namespace
}  // namespace elastic::core
