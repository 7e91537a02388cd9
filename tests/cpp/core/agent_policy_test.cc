#include "core/agent_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "core/rank_assign.h"

namespace elastic::core {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Instant at(int second) { return Instant(seconds(second)); }

WorkerExit exited(int code, int second = 1) {
  WorkerExit exit;
  exit.kind = ExitKind::kExited;
  exit.code = code;
  exit.at = at(second);
  return exit;
}

WorkerExit killed(int signal, int second = 1) {
  WorkerExit exit;
  exit.kind = ExitKind::kSignaled;
  exit.signal = signal;
  exit.at = at(second);
  return exit;
}

WorkerExit not_started(int error, const char* stage = "exec", int second = 1) {
  WorkerExit exit;
  exit.kind = ExitKind::kNotStarted;
  exit.stage = stage;
  exit.error = error;
  exit.path = "/no/such";
  exit.at = at(second);
  return exit;
}

WorkerExit stopped(WorkerExit exit) {
  exit.stopped_by_us = true;
  return exit;
}

// A policy of two workers, with what it has told to do so far in short words.
class Fixture {
 public:
  explicit Fixture(int max_restarts = 0)
      : policy_({.max_restarts = max_restarts, .stop_grace = seconds(30)}) {
    std::vector<PolicyAction> actions;
    policy_.begin(&actions);
    record(std::move(actions));
  }

  Fixture& feed(const PolicyEvent& event) {
    std::vector<PolicyAction> actions;
    policy_.step(event, at(100), &actions);
    record(std::move(actions));
    return *this;
  }
  Fixture& ready() {
    auto round = std::make_shared<RoundInfo>();
    round->workers = worker_assignments(assign_ranks({{2, "default"}})[0], 2);
    return feed(RoundReady{std::move(round)});
  }
  Fixture& started(int local_rank) {
    return feed(WorkerStarted{local_rank, 1000 + local_rank, {}});
  }
  Fixture& running() { return ready().started(0).started(1); }
  Fixture& exit(int local_rank, const WorkerExit& exit) {
    return feed(WorkerExited{local_rank, 1000 + local_rank, exit});
  }
  Fixture& gone() { return feed(GroupGone{}); }
  Fixture& stop(int signal = SIGTERM) { return feed(StopRequested{signal}); }
  Fixture& lost() { return feed(SupervisionLost{"the guardian died"}); }

  // The words of the actions since the last call.
  std::vector<std::string> words() { return std::exchange(words_, {}); }
  Fixture& quiet() {
    words_.clear();
    return *this;
  }
  AgentState state() const { return policy_.state(); }
  const AgentResult& result() const { return result_; }
  const std::string& message() const { return message_; }
  const AgentPolicy& policy() const { return policy_; }

 private:
  void record(std::vector<PolicyAction> actions) {
    for (PolicyAction& action : actions) {
      if (const auto* join = std::get_if<Join>(&action)) {
        words_.push_back("join " + std::to_string(join->round) + " after " +
                         std::to_string(join->restart_count));
      } else if (std::holds_alternative<StartGroup>(action)) {
        words_.emplace_back("start");
      } else if (const auto* stop = std::get_if<StopGroup>(&action)) {
        words_.push_back("stop " + std::to_string(stop->signal) + " " +
                         std::to_string(to_seconds(stop->grace)).substr(0, 2));
      } else if (const auto* report = std::get_if<Report>(&action)) {
        words_.push_back("report " + kind_name(report->event.kind));
        message_ = report->event.message;
      } else {
        result_ = std::get<Finish>(action).result;
        words_.push_back("finish " + std::to_string(result_.exit_code));
      }
    }
  }
  static std::string kind_name(AgentEvent::Kind kind) {
    switch (kind) {
      case AgentEvent::Kind::kRoundStarting: return "round";
      case AgentEvent::Kind::kWorkerStarted: return "started";
      case AgentEvent::Kind::kWorkersRunning: return "running";
      case AgentEvent::Kind::kWorkerExited: return "exited";
      case AgentEvent::Kind::kStopping: return "stopping";
      case AgentEvent::Kind::kRestarting: return "restarting";
      case AgentEvent::Kind::kFinished: return "finished";
    }
    return "?";
  }

  AgentPolicy policy_;
  std::vector<std::string> words_;
  std::string message_;
  AgentResult result_;
};

// One test for each row of the table.

TEST(AgentPolicy, BeginsWithTheFirstRound) {
  Fixture agent;
  EXPECT_THAT(agent.words(), ElementsAre("join 1 after 0"));
  EXPECT_EQ(agent.state(), AgentState::kInit);
}

TEST(AgentPolicy, InitStartsTheGroupWhenTheRoundIsReady) {
  Fixture agent;
  EXPECT_THAT(agent.quiet().ready().words(), ElementsAre("report round", "start"));
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
}

TEST(AgentPolicy, InitFailsWithTheRound) {
  Fixture agent;
  agent.quiet().feed(RoundFailed{kExitCannotServe, "port 1 is taken"});
  EXPECT_THAT(agent.words(), ElementsAre("finish 73"));
  EXPECT_EQ(agent.state(), AgentState::kFailed);
  EXPECT_EQ(agent.result().message, "port 1 is taken");
}

TEST(AgentPolicy, InitStopsAtOnce) {
  Fixture agent;
  EXPECT_THAT(agent.quiet().stop(SIGINT).words(), ElementsAre("finish 130"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
  EXPECT_THAT(agent.ready().words(), IsEmpty()) << "after the end nothing may start";
}

TEST(AgentPolicy, InitIsLostWithTheGuardian) {
  Fixture agent;
  EXPECT_THAT(agent.quiet().lost().words(), ElementsAre("finish 71"));
  EXPECT_EQ(agent.result().state, AgentState::kUnknown);
  EXPECT_EQ(agent.result().message, "the guardian died");
}

TEST(AgentPolicy, HealthyTellsWhenAllWorkersRun) {
  Fixture agent;
  EXPECT_THAT(agent.ready().quiet().started(1).words(), ElementsAre("report started"));
  EXPECT_THAT(agent.started(0).words(), ElementsAre("report started", "report running"));
}

TEST(AgentPolicy, HealthyCountsADoneWorkerAndGoesOn) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().exit(0, exited(0)).words(), ElementsAre("report exited"));
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
}

TEST(AgentPolicy, HealthySucceedsWhenNothingIsLeftOfDoneWorkers) {
  Fixture agent;
  agent.running().exit(0, exited(0)).quiet();
  EXPECT_THAT(agent.exit(1, exited(0)).words(), ElementsAre("report exited"))
      << "what the workers left behind may still be there";
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 0"));
  EXPECT_EQ(agent.result().state, AgentState::kSucceeded);
  EXPECT_EQ(agent.result().message, "");
}

TEST(AgentPolicy, HealthyStopsTheOthersWhenOneFails) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().exit(1, exited(3)).words(),
              ElementsAre("report exited", "stop 15 30", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
  EXPECT_EQ(agent.message(),
            "rank 1 (local rank 1, pid 1001) exited with code 3; stopping the other workers, which "
            "have 30 s");
}

TEST(AgentPolicy, HealthyStopsNobodyWhenTheLastWorkerFails) {
  Fixture agent;
  agent.running().exit(0, exited(0)).quiet();
  EXPECT_THAT(agent.exit(1, exited(3)).words(), ElementsAre("report exited"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
}

TEST(AgentPolicy, HealthyStopsOnRequest) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().stop(SIGHUP).words(),
              ElementsAre("stop 1 30", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kStopped);
  EXPECT_EQ(agent.message(), "asked to stop by signal 1 (SIGHUP); the workers have 30 s");
}

TEST(AgentPolicy, HealthyKeepsItsSuccessWhenARequestComesTooLate) {
  Fixture agent;
  agent.running().exit(0, exited(0)).exit(1, exited(0)).quiet();
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 30", "report stopping"));
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 9 0.", "report stopping"));
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 0"));
}

TEST(AgentPolicy, HealthyIsLostWithTheGuardian) {
  Fixture agent;
  EXPECT_THAT(agent.running().quiet().lost().words(), ElementsAre("finish 71"));
  EXPECT_EQ(agent.result().state, AgentState::kUnknown);
}

TEST(AgentPolicy, HealthyDistrustsAGroupThatIsGoneBeforeItsWorkers) {
  Fixture agent;
  EXPECT_THAT(agent.running().exit(0, exited(0)).quiet().gone().words(), ElementsAre("finish 71"));
  EXPECT_EQ(agent.result().state, AgentState::kUnknown);
}

TEST(AgentPolicy, UnhealthyStillTellsWhoStarts) {
  Fixture agent;
  agent.ready().started(0).exit(0, exited(1)).quiet();
  EXPECT_THAT(agent.started(1).words(), ElementsAre("report started"))
      << "a group with a failed worker never runs as a whole";
}

TEST(AgentPolicy, UnhealthyCollectsFailuresByTheTimeOfExit) {
  Fixture agent;
  agent.running().exit(1, exited(3, 9)).exit(0, killed(SIGSEGV, 8)).gone();
  ASSERT_EQ(agent.result().failures.size(), 2u);
  EXPECT_EQ(agent.result().failures[0].rank, 0);
  EXPECT_EQ(agent.result().failures[1].rank, 1);
  EXPECT_EQ(agent.result().exit_code, 128 + SIGSEGV);
  EXPECT_EQ(agent.result().message,
            "rank 0 (local rank 0, pid 1000) killed by signal 11 (SIGSEGV)");
}

TEST(AgentPolicy, UnhealthyBlamesNoWorkerThatWeStopped) {
  Fixture agent;
  agent.running().exit(1, exited(3, 9)).exit(0, stopped(killed(SIGTERM, 8))).gone();
  ASSERT_EQ(agent.result().failures.size(), 1u);
  EXPECT_EQ(agent.result().exit_code, 3);
}

TEST(AgentPolicy, UnhealthyAcceptsThatAWorkerIsDone) {
  Fixture agent;
  EXPECT_THAT(agent.running().exit(1, exited(3)).quiet().exit(0, exited(0)).words(),
              ElementsAre("report exited"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
}

TEST(AgentPolicy, UnhealthyRestartsWhileTheBudgetLasts) {
  Fixture agent(2);
  agent.running().exit(1, exited(3)).exit(0, exited(4)).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("report restarting", "join 2 after 1"))
      << "two failures in one round cost one restart";
  EXPECT_EQ(agent.state(), AgentState::kInit);
  EXPECT_EQ(agent.message(),
            "rank 1 (local rank 1, pid 1001) exited with code 3; restarting, 1 of 2 restarts left");
  agent.running().exit(1, exited(3)).exit(0, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("report restarting", "join 3 after 2"));
  agent.running().exit(1, killed(SIGKILL)).exit(0, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 137"));
  EXPECT_EQ(agent.result().state, AgentState::kFailed);
  EXPECT_THAT(agent.result().message, HasSubstr("none of 2 restarts is left"));
}

TEST(AgentPolicy, UnhealthyForgetsTheFailuresOfEarlierRounds) {
  Fixture agent(1);
  agent.running().exit(1, exited(3)).exit(0, exited(4)).gone();
  agent.running().exit(0, exited(5)).exit(1, stopped(killed(SIGTERM))).gone();
  ASSERT_EQ(agent.result().failures.size(), 1u);
  EXPECT_EQ(agent.result().exit_code, 5);
}

TEST(AgentPolicy, UnhealthyTurnsIntoStoppedWhenARestartWouldHaveFollowed) {
  Fixture agent(1);
  agent.running().exit(1, exited(3)).quiet();
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 30", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kStopped);
  EXPECT_THAT(agent.exit(0, stopped(killed(SIGTERM))).quiet().gone().words(),
              ElementsAre("finish 143"));
}

TEST(AgentPolicy, UnhealthyKeepsItsVerdictWhenARequestComesTooLate) {
  Fixture agent;
  agent.running().exit(1, exited(3)).quiet();
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 30", "report stopping"));
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 9 0.", "report stopping"));
  EXPECT_THAT(agent.exit(0, stopped(killed(SIGKILL))).quiet().gone().words(),
              ElementsAre("finish 3"));
}

TEST(AgentPolicy, UnhealthyIsLostWithTheGuardian) {
  Fixture agent(1);
  EXPECT_THAT(agent.running().exit(1, exited(3)).quiet().lost().words(), ElementsAre("finish 71"));
}

TEST(AgentPolicy, StoppedWaitsUntilNothingIsLeft) {
  Fixture agent(5);
  agent.ready().stop(SIGINT).quiet();
  EXPECT_THAT(agent.started(0).words(), ElementsAre("report started"));
  EXPECT_THAT(agent.exit(0, stopped(exited(1))).words(), ElementsAre("report exited"));
  EXPECT_THAT(agent.exit(1, exited(0)).words(), ElementsAre("report exited"));
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 130"));
  EXPECT_EQ(agent.result().state, AgentState::kStopped);
  EXPECT_THAT(agent.result().failures, IsEmpty());
}

TEST(AgentPolicy, StoppedKillsAtOnceWhenAskedAgain) {
  Fixture agent;
  EXPECT_THAT(agent.running().stop(SIGTERM).quiet().stop(SIGINT).words(),
              ElementsAre("stop 9 0.", "report stopping"));
  agent.exit(0, stopped(killed(SIGKILL))).exit(1, stopped(killed(SIGKILL))).gone();
  EXPECT_EQ(agent.result().exit_code, 128 + SIGTERM) << "the first request names the reason";
}

TEST(AgentPolicy, StoppedTellsOfFailuresButDoesNotAnswerThem) {
  Fixture agent(5);
  agent.running().stop().exit(0, exited(7)).exit(1, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("finish 143"));
  ASSERT_EQ(agent.result().failures.size(), 1u);
}

TEST(AgentPolicy, StoppedIsLostWithTheGuardian) {
  Fixture agent;
  EXPECT_THAT(agent.running().stop().quiet().lost().words(), ElementsAre("finish 71"));
}

TEST(AgentPolicy, FinalStatesTakeNoEvent) {
  Fixture agent;
  agent.running().exit(0, exited(0)).exit(1, exited(0)).gone().quiet();
  agent.stop().lost().gone().ready();
  EXPECT_THAT(agent.words(), IsEmpty());
  EXPECT_EQ(agent.state(), AgentState::kSucceeded);
}

struct NotStartedCase {
  const char* name;
  WorkerExit exit;
  int exit_code;  // with a budget of one restart
  bool is_retried;
};

class NotStarted : public ::testing::TestWithParam<NotStartedCase> {};

TEST_P(NotStarted, IsRetriedOnlyIfThatMayHelp) {
  const NotStartedCase& param = GetParam();
  Fixture agent(1);
  agent.ready().exit(0, param.exit).exit(1, stopped(killed(SIGTERM))).gone();
  EXPECT_EQ(agent.state() == AgentState::kInit, param.is_retried);
  if (param.is_retried) agent.ready().exit(0, param.exit).exit(1, stopped(killed(SIGTERM))).gone();
  EXPECT_EQ(agent.result().exit_code, param.exit_code);
  EXPECT_THAT(agent.result().message, HasSubstr("could not be started"));
}

INSTANTIATE_TEST_SUITE_P(
    AgentPolicy, NotStarted,
    ::testing::Values(NotStartedCase{"enoent", not_started(ENOENT), kExitCannotStart, false},
                      NotStartedCase{"eacces", not_started(EACCES), kExitCannotStart, false},
                      NotStartedCase{"enoexec", not_started(ENOEXEC), kExitCannotStart, false},
                      NotStartedCase{"eagain", not_started(EAGAIN, "fork"), kExitCannotStart, true},
                      NotStartedCase{"open", not_started(EACCES, "open"), kExitCannotLog, false}),
    [](const auto& test) { return test.param.name; });

TEST(AgentPolicy, AFailureThatRepeatsItselfOutranksAnEarlierOne) {
  Fixture agent(3);
  agent.ready().exit(0, exited(1, 1)).exit(1, not_started(ENOENT, "exec", 2)).gone();
  EXPECT_EQ(agent.result().exit_code, kExitCannotStart);
}

TEST(AgentPolicy, AnExitThatNobodySawIsAFailure) {
  Fixture agent;
  WorkerExit unseen;
  agent.running().exit(0, unseen).exit(1, stopped(killed(SIGTERM))).gone();
  EXPECT_EQ(agent.result().exit_code, 1);
  EXPECT_EQ(agent.result().state, AgentState::kFailed);
}

// The shape of the whole table: final states keep still, every other one answers the loss of
// supervision, and no edge leaves a working state without a step.
TEST(AgentPolicyTable, IsSound) {
  const PolicyTable& table = policy_table();
  const auto row = [&](AgentState state) { return table[static_cast<std::size_t>(state)]; };
  for (const AgentState state :
       {AgentState::kSucceeded, AgentState::kFailed, AgentState::kUnknown}) {
    for (const PolicyEdge& edge : row(state)) {
      EXPECT_EQ(edge.step, PolicyStep::kIgnore);
      EXPECT_EQ(edge.next, state);
    }
  }
  for (const AgentState state :
       {AgentState::kInit, AgentState::kHealthy, AgentState::kUnhealthy, AgentState::kStopped}) {
    for (const PolicyEdge& edge : row(state)) {
      EXPECT_NE(edge.step, PolicyStep::kIgnore);
      EXPECT_EQ(edge.step == PolicyStep::kLose, edge.next == AgentState::kUnknown);
    }
    const auto lost = static_cast<std::size_t>(PolicyInput::kSupervisionLost);
    EXPECT_EQ(row(state)[lost].step, PolicyStep::kLose);
  }
}

TEST(AgentState, HasTorchsNames) {
  EXPECT_STREQ(to_string(AgentState::kInit), "INIT");
  EXPECT_STREQ(to_string(AgentState::kHealthy), "HEALTHY");
  EXPECT_STREQ(to_string(AgentState::kUnhealthy), "UNHEALTHY");
  EXPECT_STREQ(to_string(AgentState::kStopped), "STOPPED");
  EXPECT_STREQ(to_string(AgentState::kSucceeded), "SUCCEEDED");
  EXPECT_STREQ(to_string(AgentState::kFailed), "FAILED");
  EXPECT_STREQ(to_string(AgentState::kUnknown), "UNKNOWN");
}

}  // namespace
}  // namespace elastic::core
