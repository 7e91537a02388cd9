// What a function of the user says about failed workers, as the agent follows it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <variant>

#include "core/agent/agent_machine_fixture.h"

namespace elastic::core {
namespace {

using ::testing::HasSubstr;

class AgentAdviceTest : public AgentMachineTest {
 protected:
  void SetUp() override { use(with_function()); }
  static AgentMachineOptions with_function() {
    AgentMachineOptions with = options();
    with.policy.agent.asks_for_advice = true;
    with.policy.settings.node_timeout = seconds(20);
    return with;
  }
  // The worker ends, and what its output says is found.
  void fail(int worker, int code) {
    exit(worker, exited(code));
    find(worker, code);
  }
  void find(int worker, int code) {
    FailureFound found{{worker, 1000 + worker, exited(code)}};
    found.worker.evidence.error = "ValueError: " + std::to_string(code);
    step(found);
  }
  void end_processes() {
    exit(1, stopped());
    step(agent_event::ProcessesEnded{});
    step(agent_event::FailuresExamined{});
  }
  static WorkerExit stopped() {
    WorkerExit exit = exited(1);
    exit.stopped_by_us = true;
    return exit;
  }
  AgentMachineTest& advise(int worker, std::optional<FailureAdvice> advice) {
    return step(agent_event::Advised{round_, worker, std::move(advice)});
  }
  const WorkerFailure* asked() const {
    for (const AgentAction& action : actions_) {
      const auto* report = std::get_if<Report>(&action);
      if (report != nullptr && report->event.failure) return &*report->event.failure;
    }
    return nullptr;
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
  bool has_left_round() const { return sent<rdzv::Gone>() != nullptr || has<OpenStore>(); }
  static constexpr FailureAction kStop = FailureAction::kStop;
};

TEST_F(AgentAdviceTest, TheRoundEndsWithTheAnswerWhichTheRendezvousReceivesFirst) {
  run();
  fail(0, 3);
  ASSERT_NE(asked(), nullptr);
  EXPECT_EQ(asked()->exit_code, 3);
  EXPECT_EQ(asked()->evidence->error, "ValueError: 3");
  restart(rdzv::RestartCause::kWorkerFailed);
  end_processes();
  EXPECT_FALSE(has_left_round()) << "it waits for the answer";
  advise(0, FailureAdvice{.action = kStop, .from = "f"});
  ASSERT_NE(sent<rdzv::Failed>(), nullptr);
  EXPECT_EQ(sent<rdzv::Failed>()->failure.advice->action, kStop);
  EXPECT_EQ(sent<rdzv::Failed>()->failure.evidence->error, "ValueError: 3");
  EXPECT_TRUE(has_left_round());
}

TEST_F(AgentAdviceTest, AnAnswerBeforeTheEndOfTheWorkersDelaysNothing) {
  run();
  fail(0, 3);
  restart(rdzv::RestartCause::kWorkerFailed);
  advise(0, FailureAdvice{.action = kStop, .from = "f"});
  EXPECT_NE(sent<rdzv::Failed>(), nullptr);
  EXPECT_FALSE(has_left_round());
  end_processes();
  EXPECT_TRUE(has_left_round());
}

TEST_F(AgentAdviceTest, NothingIsSentWhereTheFunctionSaysNothing) {
  run();
  fail(0, 3);
  restart(rdzv::RestartCause::kWorkerFailed);
  end_processes();
  advise(0, std::nullopt);
  EXPECT_EQ(sent<rdzv::Failed>(), nullptr);
  EXPECT_TRUE(has_left_round());
}

TEST_F(AgentAdviceTest, WithoutAnAnswerTheRoundEndsAtTheLimit) {
  run();
  fail(0, 3);
  restart(rdzv::RestartCause::kWorkerFailed);
  end_processes();
  wait_for(kAdviceLimit);
  EXPECT_TRUE(has_left_round());
  EXPECT_THAT(reported(AgentEvent::Kind::kNotice),
              HasSubstr("has not answered about rank 0 within 5 s"));
  advise(0, FailureAdvice{.action = kStop, .from = "f"});
  EXPECT_TRUE(actions_.empty()) << "it is too late";
}

TEST_F(AgentAdviceTest, TheLimitIsShortWhereTheCoordinatorDecidesEarly) {
  AgentMachineOptions with = with_function();
  with.policy.settings.node_timeout = seconds(4);
  use(with);
  run();
  fail(0, 3);
  restart(rdzv::RestartCause::kWorkerFailed);
  end_processes();
  wait_for(seconds(2));
  EXPECT_TRUE(has_left_round());
}

TEST_F(AgentAdviceTest, AWorkerIsAskedAboutOnceWithTheLatestEvidence) {
  run();
  fail(0, 3);
  restart(rdzv::RestartCause::kWorkerFailed);
  FailureFound more{{0, 1000, exited(3)}};
  more.worker.evidence.error = "ValueError: more";
  step(more);
  EXPECT_EQ(asked(), nullptr);
  advise(0, FailureAdvice{.action = kStop, .from = "f"});
  EXPECT_EQ(sent<rdzv::Failed>()->failure.evidence->error, "ValueError: more");
  find(0, 3);
  EXPECT_EQ(sent<rdzv::Failed>()->failure.advice->action, kStop) << "later evidence keeps it";
}

TEST_F(AgentAdviceTest, EveryFailedWorkerIsAskedAboutAndTheRoundWaitsForAll) {
  run();
  fail(0, 3);
  now_ += seconds(1);
  fail(1, 4);
  ASSERT_NE(asked(), nullptr);
  restart(rdzv::RestartCause::kWorkerFailed);
  step(agent_event::ProcessesEnded{});
  step(agent_event::FailuresExamined{});
  advise(1, FailureAdvice{.action = kStop, .from = "f"});
  EXPECT_EQ(sent<rdzv::Failed>(), nullptr) << "it is not the cause";
  EXPECT_FALSE(has_left_round());
  advise(0, std::nullopt);
  EXPECT_TRUE(has_left_round());
}

TEST_F(AgentAdviceTest, NobodyWaitsForAnAnswerWhenTheJobOrTheNodeStops) {
  for (const bool is_signal : {false, true}) {
    use(with_function());
    round_ = 0;
    run();
    fail(0, 3);
    restart(rdzv::RestartCause::kWorkerFailed);
    end_processes();
    EXPECT_FALSE(has<Finish>());
    if (is_signal) {
      step(StopRequested{SIGTERM});
    } else {
      JobResult result;
      result.outcome = JobOutcome::kFailed;
      result.exit_code = 3;
      step(rdzv::Closed{kSelf, std::make_shared<const JobResult>(result)});
    }
    EXPECT_TRUE(has<Finish>()) << is_signal;
  }
}

TEST_F(AgentAdviceTest, AnAnswerAboutAnotherRoundHasNoEffect) {
  run();
  fail(0, 3);
  step(agent_event::Advised{round_ + 1, 0, FailureAdvice{.action = kStop, .from = "f"}});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(AgentAdviceTest, NobodyIsAskedWithoutAFunction) {
  use(options());
  run();
  fail(0, 3);
  EXPECT_EQ(asked(), nullptr);
  restart(rdzv::RestartCause::kWorkerFailed);
  end_processes();
  EXPECT_TRUE(has_left_round());
}

}  // namespace
}  // namespace elastic::core
