// The checks of a node, as its agent follows them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <variant>

#include "core/agent/agent_machine_fixture.h"

namespace elastic::core {
namespace {

using ::testing::HasSubstr;
using RunCheck = gate::check_action::Run;
using KillCheck = gate::check_action::Kill;

class AgentChecksTest : public AgentMachineTest {
 protected:
  void SetUp() override { use(with_check()); }
  static AgentMachineOptions with_check() {
    AgentMachineOptions with = options();
    with.policy.settings.max_nodes = 2;
    with.checks = {.host = "node7", .checks = {"gpu"}, .limit = seconds(60)};
    return with;
  }
  AgentMachineTest& end_check(int code, std::uint32_t run = 1) {
    return step(agent_event::CheckEnded{run, {.exit = exited(code), .output = "GPU 3 is lost\n"}});
  }
  bool has_sent_finding() const {
    const auto observe = one<agent_action::Observe>();
    return observe && std::holds_alternative<gate::Finding>(observe->message);
  }
  void run_checked() {
    step(agent_event::NodeStarted{});
    end_check(0);
    run(2);
  }
  template <typename Statement>
  const Statement* sent() const {
    for (const AgentAction& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      if (const auto* one = std::get_if<Statement>(&send->statement)) return one;
    }
    return nullptr;
  }
};

TEST_F(AgentChecksTest, TheJoinWaitsForTheCheckThatRunsBesideTheWayToTheRendezvous) {
  EXPECT_TRUE(step(agent_event::NodeStarted{}).has<RunCheck>());
  EXPECT_FALSE(step(RendezvousReady{"n", "10.0.0.1"}).has<OpenStore>());
  end_check(0);
  EXPECT_TRUE(has<OpenStore>()) << "it joins";
  EXPECT_TRUE(has_sent_finding());
}

TEST_F(AgentChecksTest, ACheckThatEndsFirstDelaysNothing) {
  step(agent_event::NodeStarted{});
  EXPECT_FALSE(end_check(0).has<OpenStore>());
  EXPECT_FALSE(has_sent_finding()) << "the coordinator is not reached";
  EXPECT_TRUE(step(RendezvousReady{"n", "10.0.0.1"}).has<OpenStore>());
  EXPECT_TRUE(has_sent_finding());
}

TEST_F(AgentChecksTest, UnknownIsReportedAndJoins) {
  step(agent_event::NodeStarted{});
  step(RendezvousReady{"n", "10.0.0.1"});
  wait_for(seconds(60));
  EXPECT_TRUE(has<KillCheck>());
  EXPECT_TRUE(has<OpenStore>());
  EXPECT_EQ(reported(AgentEvent::Kind::kNodeCheck),
            "check gpu of host node7 is unknown: it did not end within 1 min");
}

TEST_F(AgentChecksTest, ABadNodeReportsItAndDoesNotJoin) {
  for (const bool is_check_first : {true, false}) {
    use(with_check());
    step(agent_event::NodeStarted{});
    if (is_check_first) {
      EXPECT_FALSE(end_check(1).has<Finish>()) << "it waits for the coordinator, to report it";
      step(RendezvousReady{"n", "10.0.0.1"});
    } else {
      step(RendezvousReady{"n", "10.0.0.1"});
      end_check(1);
    }
    EXPECT_TRUE(has_sent_finding());
    EXPECT_TRUE(has<agent_action::ReportOnly>());
    EXPECT_FALSE(has<OpenStore>());
    EXPECT_FALSE(has<Finish>()) << "it waits until the coordinator has the report";
    step(rdzv::Refused{kSelf, Status(StatusCode::kFailedPrecondition, "bad"), true});
    ASSERT_TRUE(has<Finish>());
    EXPECT_EQ(one<Finish>()->result.exit_code, kExitBadHost);
    EXPECT_EQ(one<Finish>()->result.message,
              "check gpu of host node7: GPU 3 is lost; this node does not join");
  }
}

TEST_F(AgentChecksTest, ABadHostKeepsItsCoordinatorWhereNobodyWouldReplaceIt) {
  for (const LossPolicy on_loss : {LossPolicy::kFail, LossPolicy::kReplace}) {
    AgentMachineOptions with = with_check();
    with.policy.settings.on_loss = on_loss;
    use(with);
    step(agent_event::NodeStarted{});
    end_check(1);
    step(RendezvousReady{"n", "10.0.0.1", true});
    EXPECT_TRUE(has<agent_action::ReportOnly>());
    step(rdzv::Refused{kSelf, Status(StatusCode::kFailedPrecondition, "bad"), true});
    EXPECT_EQ(has<Finish>(), on_loss == LossPolicy::kReplace);
    if (on_loss == LossPolicy::kReplace) continue;
    // The other nodes give up after the last call.
    wait_for(with.policy.settings.last_call_timeout + kFindingLimit);
    ASSERT_TRUE(has<Finish>());
    EXPECT_EQ(one<Finish>()->result.exit_code, kExitBadHost);
  }
}

TEST_F(AgentChecksTest, TheNodeOfAJobOfOneHasNobodyToTell) {
  AgentMachineOptions with = with_check();
  with.policy.settings.max_nodes = 1;
  use(with);
  step(agent_event::NodeStarted{});
  step(RendezvousReady{"n", "10.0.0.1"});
  EXPECT_TRUE(end_check(1).has<Finish>());
}

TEST_F(AgentChecksTest, ABadNodeDoesNotWaitForAReplyForEver) {
  step(agent_event::NodeStarted{});
  step(RendezvousReady{"n", "10.0.0.1"});
  EXPECT_TRUE(end_check(1).has<agent_action::ReportOnly>());
  wait_for(kFindingLimit);
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, kExitBadHost);
}

TEST_F(AgentChecksTest, ABadNodeWaitsForTheCoordinatorForALimitedTime) {
  step(agent_event::NodeStarted{});
  end_check(2);
  wait_for(kFindingLimit);
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, kExitBadHost);
}

TEST_F(AgentChecksTest, ARestartOfAHealthyNodeDoesNotWaitForItsCheck) {
  run_checked();
  exit(0, exited(3));
  ASSERT_TRUE(has<RunCheck>());
  EXPECT_EQ(one<RunCheck>()->occasion, gate::Occasion::kFailure);
  ASSERT_NE(sent<rdzv::Failed>(), nullptr) << "the failure is reported first";
  EXPECT_TRUE(std::holds_alternative<Send>(actions_.front()) ||
              std::holds_alternative<Report>(actions_.front()));
  EXPECT_TRUE(restart(rdzv::RestartCause::kWorkerFailed).has<Stop>());
  WorkerExit stopped = killed(SIGTERM);
  stopped.stopped_by_us = true;
  exit(1, stopped);
  EXPECT_FALSE(has<RunCheck>()) << "a stop is no failure";
  step(agent_event::ProcessesEnded{});
  step(agent_event::FailuresExamined{});
  EXPECT_TRUE(has<OpenStore>()) << "it joins again, while the check runs";
  begin_round(2);
  EXPECT_TRUE(has<agent_action::StartWorkers>());
  end_check(0, 2);
  EXPECT_FALSE(has<Stop>());
}

TEST_F(AgentChecksTest, ANodeThatIsFoundBadAfterAFailureLeavesTheJob) {
  for (const bool is_in_next_round : {false, true}) {
    use(with_check());
    run_checked();
    exit(0, exited(3));
    if (is_in_next_round) {
      restart(rdzv::RestartCause::kWorkerFailed);
      WorkerExit stopped = killed(SIGTERM);
      stopped.stopped_by_us = true;
      exit(1, stopped);
      step(agent_event::ProcessesEnded{});
      step(agent_event::FailuresExamined{});
      begin_round(2);
    }
    end_check(1, 2);
    ASSERT_NE(sent<rdzv::Leave>(), nullptr);
    EXPECT_EQ(sent<rdzv::Leave>()->exit_code, kExitBadHost);
    EXPECT_EQ(sent<rdzv::Leave>()->reason, "check gpu of host node7: GPU 3 is lost");
    ASSERT_TRUE(has<Stop>());
    EXPECT_TRUE(has_sent_finding());
  }
}

TEST_F(AgentChecksTest, AStopWhileTheCheckHoldsTheJoinKillsIt) {
  step(agent_event::NodeStarted{});
  step(RendezvousReady{"n", "10.0.0.1"});
  step(StopRequested{SIGTERM});
  EXPECT_TRUE(has<KillCheck>());
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(end_check(1).actions_.empty());
}

TEST_F(AgentChecksTest, ABadNodeWhoseWorkersHaveSucceededStays) {
  run_checked();
  exit(0, exited(3));
  restart(rdzv::RestartCause::kWorkerFailed);
  WorkerExit stopped = killed(SIGTERM);
  stopped.stopped_by_us = true;
  exit(1, stopped);
  step(agent_event::ProcessesEnded{});
  step(agent_event::FailuresExamined{});
  begin_round(2);
  for (const int worker : {0, 1}) step(WorkerStarted{worker, 1000 + worker, now_});
  exit(0, exited(0));
  exit(1, exited(0));
  step(agent_event::ProcessesEnded{});
  step(agent_event::FailuresExamined{});
  end_check(1, 2);
  EXPECT_EQ(sent<rdzv::Leave>(), nullptr);
  EXPECT_TRUE(has_sent_finding());
}

}  // namespace
}  // namespace elastic::core
