// What surrounds the policy of an agent: held stops, verdicts, requests to drain, and the end.

#include "core/agent/agent_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <vector>

#include "core/agent/agent_machine_fixture.h"
#include "core/workers/worker_exits.h"

namespace elastic::core {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// ---- Stops.

TEST_F(AgentMachineTest, AStopAfterAFailureWaitsForTheStacks) {
  use(with_stacks());
  run();
  exit(0, exited(1)).restart(rdzv::RestartCause::kWorkerFailed);
  EXPECT_TRUE(has<Collect>());
  EXPECT_FALSE(has<Stop>());
  step(agent_event::StacksCollected{true});
  EXPECT_THAT(one<agent_action::WriteStacks>()->reason, HasSubstr("before the stop"));
  ASSERT_TRUE(has<Stop>());
  EXPECT_TRUE(one<Stop>()->after_failure);
  EXPECT_EQ(one<Stop>()->how.signal, SIGTERM);
}

// ---- Why workers are stopped.

TEST_F(AgentMachineTest, AStopSaysWhy) {
  run(2);
  const StopReason why{StopCause::kNodeLost,          -1,         "m", 0,
                       FailureClass::kInfrastructure, "m is gone"};
  step(rdzv::Restart{kSelf, round_, rdzv::RestartCause::kMemberLost, "m was lost",
                     std::chrono::seconds(5), why});
  ASSERT_TRUE(has<Stop>());
  EXPECT_EQ(one<Stop>()->how.why, why);
  step(StopRequested{SIGTERM});  // later and final
  ASSERT_TRUE(has<Stop>());
  EXPECT_EQ(one<Stop>()->how.why.describe(),
            "preempted; node=n; reason=stopped by signal 15 (SIGTERM)");
}

TEST_F(AgentMachineTest, AnOrderOfAnEarlierVersionSaysLess) {
  run(2);
  restart(rdzv::RestartCause::kWorkerFailed);
  ASSERT_TRUE(has<Stop>());
  EXPECT_EQ(one<Stop>()->how.why.describe(), "worker-failed; reason=m was lost");
}

TEST_F(AgentMachineTest, WithoutAnOrderTheNodesOwnFailureIsTheReason) {
  run(2);
  exit(1, exited(3));
  wait_for(kOrderTimeout);
  ASSERT_TRUE(has<Stop>());
  EXPECT_EQ(one<Stop>()->how.why.cause, StopCause::kWorkerFailed);
  EXPECT_EQ(one<Stop>()->how.why.rank, 3);
  EXPECT_EQ(one<Stop>()->how.why.exit_code, 3);
}

TEST_F(AgentMachineTest, TheEndOfTheJobIsAReason) {
  struct Row {
    JobCause cause;
    int exit_code;
    StopCause why;
  };
  for (const Row row : {Row{JobCause::kWorker, 1, StopCause::kWorkerFailed},
                        Row{JobCause::kNodeLost, 0, StopCause::kNodeLost},
                        Row{JobCause::kNodeLost, 42, StopCause::kNodeLeft},
                        Row{JobCause::kNodeLost, 143, StopCause::kPreempted},
                        Row{JobCause::kTooFewNodes, 0, StopCause::kJobEnded},
                        Row{JobCause::kRequested, 1, StopCause::kJobEnded}}) {
    use(options());
    round_ = 0;
    run(2);
    JobResult result;
    result.outcome = JobOutcome::kFailed;
    result.cause = row.cause;
    result.exit_code = row.exit_code;
    result.rank = 0;
    result.node = "m";
    result.message = "it failed";
    step(rdzv::Closed{kSelf, std::make_shared<const JobResult>(result)});
    ASSERT_TRUE(has<Stop>());
    EXPECT_EQ(one<Stop>()->how.why.cause, row.why);
  }
}

TEST_F(AgentMachineTest, AStopWaitsForStacksAtMostTwoSeconds) {
  use(with_stacks());
  run();
  restart();
  wait_for(kHeldStopLimit);
  ASSERT_TRUE(has<Stop>());
  EXPECT_FALSE(one<Stop>()->after_failure);  // a node was lost
  EXPECT_TRUE(step(agent_event::StacksCollected{true}).actions_.empty());
}

TEST_F(AgentMachineTest, WithoutAFailureNothingWaitsForStacks) {
  use(with_stacks());
  run();
  restart(rdzv::RestartCause::kGrowth);
  EXPECT_TRUE(has<Stop>());
  EXPECT_FALSE(has<Collect>());
  use(with_stacks());
  round_ = 0;
  run();
  step(StopRequested{SIGTERM});
  EXPECT_TRUE(has<Stop>());
  EXPECT_FALSE(has<Collect>());
}

TEST_F(AgentMachineTest, AStopRequestDoesNotWaitForTheStacksOfAnEarlierStop) {
  use(with_stacks());
  run();
  restart();
  step(StopRequested{SIGINT});
  ASSERT_TRUE(has<Stop>());
  EXPECT_EQ(one<Stop>()->how.signal, SIGINT);
}

TEST_F(AgentMachineTest, AHeldStopIsForgottenWhenNoProcessIsLeft) {
  use(with_stacks());
  run();
  restart();
  step(agent_event::ProcessesEnded{});
  EXPECT_EQ(agent_->next_deadline(), now_ + kExaminationTimeout);
  EXPECT_TRUE(step(agent_event::StacksCollected{true}).actions_.empty());
}

TEST_F(AgentMachineTest, TheNextRoundMayHoldItsStopAgain) {
  use(with_stacks());
  run();
  restart().step(agent_event::StacksCollected{});
  exit(0, stopped(killed(SIGTERM))).exit(1, stopped(killed(SIGTERM))).step(GroupGone{});
  begin_round();
  EXPECT_TRUE(restart(rdzv::RestartCause::kGrowth).has<Stop>());  // the cause is not the last one's
}

TEST_F(AgentMachineTest, ARoundIsOverWhenItsFailuresAreExamined) {
  for (const bool is_found : {true, false}) {
    use(options());
    round_ = 0;
    run();
    exit(0, exited(1)).restart(rdzv::RestartCause::kWorkerFailed);
    exit(1, stopped(killed(SIGTERM))).step(agent_event::ProcessesEnded{});
    EXPECT_FALSE(has<Send>());
    if (is_found) {
      step(agent_event::FailuresExamined{});
    } else {
      wait_for(kExaminationTimeout);
    }
    ASSERT_TRUE(has<Send>());
    EXPECT_TRUE(std::holds_alternative<rdzv::Gone>(one<Send>()->statement));
    EXPECT_EQ(has<agent_action::EndExamination>(), !is_found);
    EXPECT_FALSE(step(agent_event::FailuresExamined{}).has<Send>()) << "once";
  }
}

// ---- Verdicts.

hang::Verdict verdict(HangAction action, int suspect = 1) {
  hang::Verdict verdict;
  verdict.round = 1;
  verdict.text = "the job hangs";
  verdict.cause = "hung: no rank made progress for 5 s";
  verdict.suspect = suspect;
  verdict.action = action;
  return verdict;
}

TEST_F(AgentMachineTest, AVerdictKillsTheSuspectAndExplainsItsExit) {
  use(with_stacks());
  run();
  step(verdict(HangAction::kFail));
  EXPECT_EQ(reported(AgentEvent::Kind::kHang), "the job hangs");
  ASSERT_TRUE(has<agent_action::KillWorker>());
  EXPECT_EQ(one<agent_action::KillWorker>()->local_rank, 1);
  const WorkerExit exit_of_it = agent_->explain(1, killed(SIGKILL));
  EXPECT_EQ(exit_of_it.verdict, "hung: no rank made progress for 5 s");
  EXPECT_TRUE(exit_of_it.ends_job);
  EXPECT_EQ(agent_->explain(0, killed(SIGKILL)).verdict, "");
  EXPECT_EQ(agent_->explain(1, killed(SIGSEGV)).verdict, "");
  exit(1, exit_of_it).restart(rdzv::RestartCause::kWorkerFailed);
  EXPECT_TRUE(has<Stop>());  // the stacks are known
}

TEST_F(AgentMachineTest, TwoWorkersThatAreKilledHaveTheirOwnReasons) {
  use(with_stacks());
  run(2);
  step(verdict(HangAction::kFail, 3));
  EXPECT_EQ(one<agent_action::KillWorker>()->local_rank, 1);
  step(agent_event::StoreUnreachable{"no route to host"});
  ASSERT_EQ(one<agent_action::KillWorker>()->local_rank, 0);
  EXPECT_EQ(agent_->explain(1, killed(SIGKILL)).verdict, "hung: no rank made progress for 5 s");
  EXPECT_TRUE(agent_->explain(1, killed(SIGKILL)).ends_job);
  EXPECT_TRUE(agent_->explain(0, killed(SIGKILL)).is_unreachable);
}

TEST_F(AgentMachineTest, TheCodeOfAKilledSuspectIsInNoList) {
  AgentMachineOptions with = options();
  with.policy.agent.bad_node_codes = with.policy.agent.no_restart_codes = {128 + SIGKILL};
  use(with);
  run();
  step(verdict(HangAction::kRestart));
  exit(1, agent_->explain(1, killed(SIGKILL)));
  ASSERT_TRUE(has<Send>());
  EXPECT_TRUE(std::holds_alternative<rdzv::Failed>(one<Send>()->statement));
}

TEST_F(AgentMachineTest, AVerdictThatOnlyReportsKillsNobody) {
  AgentMachineOptions with = options();
  with.keeps_stacks = true;
  use(with);
  run();
  step(verdict(HangAction::kReport));
  EXPECT_FALSE(has<agent_action::KillWorker>());
  EXPECT_EQ(one<agent_action::WriteStacks>()->reason, "the job hangs");
  hang::Verdict straggling = verdict(HangAction::kReport);
  straggling.kind = hang::Verdict::Kind::kStraggling;
  step(straggling);
  EXPECT_EQ(reported(AgentEvent::Kind::kStraggling), "the job hangs");
  straggling.kind = hang::Verdict::Kind::kMismatch;
  step(straggling);
  EXPECT_EQ(reported(AgentEvent::Kind::kMismatch), "the job hangs");
  EXPECT_FALSE(has<agent_action::WriteStacks>());
}

TEST_F(AgentMachineTest, AFailureIsExplainedByTheStallBeforeIt) {
  run();
  EXPECT_EQ(agent_->explain(WorkerExited{}).evidence.hint, "");
  hang::Verdict stalled = verdict(HangAction::kReport);
  stalled.kind = hang::Verdict::Kind::kStalled;
  step(stalled);
  EXPECT_EQ(reported(AgentEvent::Kind::kStalled), "the job hangs");
  EXPECT_EQ(agent_->explain(WorkerExited{}).evidence.hint,
            "before this failure the job had stalled: the job hangs");
  WorkerExited known;
  known.evidence.hint = "killed by the kernel";
  EXPECT_EQ(agent_->explain(known).evidence.hint, "killed by the kernel");
  stalled.kind = hang::Verdict::Kind::kStallOver;
  step(stalled);
  EXPECT_EQ(agent_->explain(WorkerExited{}).evidence.hint, "");
}

// The rank that the others wait for computes until their timeout.
TEST_F(AgentMachineTest, AFailureIsExplainedByAWaitThatWasNotReported) {
  run();
  hang::Verdict noted = verdict(HangAction::kReport);
  noted.kind = hang::Verdict::Kind::kNoted;
  step(noted);
  EXPECT_FALSE(has<Report>());
  EXPECT_EQ(agent_->explain(WorkerExited{}).evidence.hint,
            "before this failure the job had stalled: the job hangs");
  noted.text = "";
  step(noted);
  EXPECT_EQ(agent_->explain(WorkerExited{}).evidence.hint, "");
}

TEST_F(AgentMachineTest, WithoutASuspectRankZeroEnds) {
  run();
  step(verdict(HangAction::kRestart, -1));
  EXPECT_EQ(one<agent_action::KillWorker>()->local_rank, 0);
}

TEST_F(AgentMachineTest, AVerdictAboutAnotherNodeOrRoundKillsNobodyHere) {
  run(2);
  EXPECT_FALSE(step(verdict(HangAction::kRestart, 1)).has<agent_action::KillWorker>());
  restart();
  exit(0, stopped(killed(SIGTERM))).exit(1, stopped(killed(SIGTERM))).step(GroupGone{});
  begin_round(2);
  EXPECT_TRUE(step(verdict(HangAction::kRestart, 2)).actions_.empty());
}

TEST_F(AgentMachineTest, AStoreThatIsNotReachedEndsTheFirstWorkerThatRuns) {
  run(2);
  exit(0, exited(0));
  step(agent_event::StoreUnreachable{"no route to host"});
  EXPECT_EQ(one<agent_action::KillWorker>()->local_rank, 1);
  const WorkerExit exit_of_it = agent_->explain(1, killed(SIGKILL));
  EXPECT_TRUE(exit_of_it.is_unreachable);
  EXPECT_THAT(exit_of_it.verdict, HasSubstr("node7 does not reach the workers' store"));
}

TEST_F(AgentMachineTest, TheTimeOfTheOtherRanksBeginsWithTheFirstExitWithZero) {
  AgentMachineOptions with = options();
  with.policy.agent.straggler_timeout = seconds(60);
  use(with);
  run(2);
  exit(1, exited(0));
  ASSERT_TRUE(has<agent_action::Observe>());
  const auto finished = std::get<hang::RankFinished>(one<agent_action::Observe>()->message);
  EXPECT_EQ(finished.rank, 3);
  EXPECT_EQ(finished.limit, Duration(seconds(60)));
  EXPECT_FALSE(exit(0, exited(0)).has<agent_action::Observe>());
}

// ---- Agreed steps.

TEST_F(AgentMachineTest, ARequestToDrainThatComesToNothingStopsTheNode) {
  run();
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  ASSERT_TRUE(has<agent_action::RequestDrain>());
  EXPECT_EQ(one<agent_action::RequestDrain>()->notice.reason, "signal 15 (SIGTERM) on node7");
  EXPECT_FALSE(one<agent_action::RequestDrain>()->notice.departure);
  wait_for(seconds(20) + drain::kNoticeMargin);
  EXPECT_THAT(reported(AgentEvent::Kind::kDrain), HasSubstr("the coordinator has not stopped"));
  EXPECT_EQ(one<Stop>()->how.signal, SIGTERM);
}

TEST_F(AgentMachineTest, ARequestToDrainIsForgottenWhenTheJobIsOver) {
  run();
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.exit_code = 128 + SIGTERM;
  step(rdzv::Closed{{}, std::make_shared<const JobResult>(result)});
  EXPECT_TRUE(has<Stop>());
  now_ += seconds(20) + drain::kNoticeMargin;
  step(PolicyTick{});
  EXPECT_EQ(reported(AgentEvent::Kind::kDrain), "");
  EXPECT_FALSE(has<Stop>());
}

TEST_F(AgentMachineTest, ANodeOfSeveralLeavesAlone) {
  use(in_place());
  step(RendezvousReady{"n", "10.0.0.1"});
  begin_round(2);
  step(agent_event::DrainRequested{SIGUSR1, seconds(20)});
  const auto request = one<agent_action::RequestDrain>();
  ASSERT_TRUE(request && request->notice.departure);
  EXPECT_EQ(request->notice.departure->nodes, std::vector<NodeId>{kSelf});
  wait_for(seconds(20) + drain::kDepartureMargin);
  EXPECT_THAT(reported(AgentEvent::Kind::kDrain), HasSubstr("could not leave at an agreed step"));
  EXPECT_TRUE(has<Stop>());
}

// The coordinator ignores the notice of a node that it has evicted.
TEST_F(AgentMachineTest, ANodeThatIsEvictedDoesNotWaitForAStep) {
  for (const bool is_in_place : {false, true}) {
    for (const bool is_evicted_first : {false, true}) {
      use(is_in_place ? in_place() : options());
      round_ = 0;
      run(2);
      const agent_event::DrainRequested request{SIGTERM, seconds(20)};
      const rdzv::Evicted evicted{kSelf, round_, "no sign of life for 15 s"};
      if (is_evicted_first) {
        step(evicted).step(request);
      } else {
        step(request).step(evicted);
        EXPECT_THAT(reported(AgentEvent::Kind::kDrain), HasSubstr("continues without this node"));
      }
      EXPECT_FALSE(has<agent_action::RequestDrain>());
      EXPECT_TRUE(has<Stop>());
      exit(0, stopped(killed(SIGTERM))).exit(1, stopped(killed(SIGTERM))).step(GroupGone{});
      ASSERT_TRUE(has<Finish>()) << is_in_place << is_evicted_first;
      EXPECT_EQ(one<Finish>()->result.exit_code, 128 + SIGTERM);
    }
  }
}

TEST_F(AgentMachineTest, ANodeThatHasLeftAtAStepSavesItsState) {
  use(in_place());
  run(2);
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  step(LeaveAtStep{12});
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  EXPECT_FALSE(has<Stop>());
  step(rdzv::Evicted{kSelf, 1, "it has left"});
  EXPECT_FALSE(has<Stop>());
}

// Its ranks have stopped at the step, and save their state.
TEST_F(AgentMachineTest, ANodeThatIsEvictedAfterTheStepSavesItsState) {
  run(2);
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  drain::Order commit;
  commit.kind = drain::Order::Kind::kCommit;
  commit.round = 1;
  commit.step = 7;
  step(commit);
  drain::StopStepEvent reached;
  reached.kind = drain::Reply::Kind::kReached;
  reached.stopped = 2;
  step(reached);
  step(rdzv::Evicted{kSelf, 1, "no sign of life for 15 s"});
  EXPECT_EQ(reported(AgentEvent::Kind::kDrain), "");
}

TEST_F(AgentMachineTest, ANodeThatIsToLeaveLeavesWhenItsWorkersHaveFinished) {
  use(in_place());
  run(2);
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  ASSERT_TRUE(one<agent_action::RequestDrain>()->notice.departure);
  exit(0, exited(0)).exit(1, exited(0)).step(agent_event::ProcessesEnded{});
  EXPECT_FALSE(has<Finish>());
  step(agent_event::FailuresExamined{});
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, 128 + SIGTERM);
}

TEST_F(AgentMachineTest, ANodeWhoseWorkersHaveFinishedStopsIfTheJobDoesNot) {
  run(2);
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  exit(0, exited(0)).exit(1, exited(0)).step(GroupGone{});
  EXPECT_FALSE(has<Finish>()) << "the whole job stops at a step";
  wait_for(seconds(20) + drain::kNoticeMargin);
  EXPECT_THAT(reported(AgentEvent::Kind::kDrain), HasSubstr("the coordinator has not stopped"));
  ASSERT_TRUE(has<Finish>());
  EXPECT_EQ(one<Finish>()->result.exit_code, 128 + SIGTERM);
}

TEST_F(AgentMachineTest, ANodeThatIsToLeaveStaysForAStopOfTheWholeJob) {
  use(in_place());
  run(2);
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  step(drain::Order{.kind = drain::Order::Kind::kAsk, .round = round_, .proposal = 1});
  exit(0, exited(0)).exit(1, exited(0)).step(GroupGone{});
  EXPECT_FALSE(has<Finish>());
}

TEST_F(AgentMachineTest, ARequestOfAJobThatKeepsWorkersNamesWhatWasToStop) {
  use(in_place());
  run(1);  // its only node
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  ASSERT_FALSE(one<agent_action::RequestDrain>()->notice.departure);
  wait_for(seconds(20) + drain::kNoticeMargin);
  EXPECT_THAT(reported(AgentEvent::Kind::kDrain), HasSubstr("the coordinator has not stopped"));
}

TEST_F(AgentMachineTest, AFailureAfterTheAgreedStepHasTheTimeOfItsExit) {
  use(in_place());
  step(RendezvousReady{"n", "10.0.0.1"});
  begin_round(2);
  step(LeaveAtStep{12});
  WorkerExit late = exited(5);
  late.stop_step = 12;
  exit(0, exited(0)).exit(1, late).step(FailureFound{{1, -1, late}}).step(GroupGone{});
  ASSERT_TRUE(has<Finish>());
  const auto failures = one<Finish>()->result.failures;
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].at, late.at);
}

TEST_F(AgentMachineTest, ANodeLeavesAloneWhileARoundOfSeveralIsFormed) {
  AgentMachineOptions with = in_place();
  with.policy.settings.max_nodes = 2;
  use(with);
  step(RendezvousReady{"n", "10.0.0.1"});
  begin_round(1);
  for (const int rank : {0, 1}) step(WorkerCapable{rank});
  const auto leaves_alone = [this] {
    step(agent_event::DrainRequested{SIGTERM, seconds(20)});
    const auto request = one<agent_action::RequestDrain>();
    return request && request->notice.departure;
  };
  EXPECT_FALSE(leaves_alone()) << "it is alone";
  restart(rdzv::RestartCause::kGrowth);
  EXPECT_TRUE(leaves_alone()) << "the round is over";
  for (const int rank : {0, 1}) step(WorkerLeft{rank});
  EXPECT_TRUE(leaves_alone());
}

TEST_F(AgentMachineTest, WithoutAWorkerARequestToDrainWaitsOnlyForTheCoordinator) {
  run();
  exit(0, exited(3)).exit(1, exited(3)).restart(rdzv::RestartCause::kWorkerFailed);
  step(agent_event::ProcessesEnded{}).step(agent_event::FailuresExamined{});
  step(agent_event::StoreOpened{std::uint16_t{1}});
  ASSERT_EQ(agent_->state(), AgentState::kInit);
  step(agent_event::DrainRequested{SIGTERM, seconds(50)});
  ASSERT_TRUE(has<agent_action::RequestDrain>());
  wait_for(drain::kNoticeMargin);
  EXPECT_EQ(agent_->state(), AgentState::kStopped);
}

TEST_F(AgentMachineTest, AWorkerThatTheSignalOfTheNoticeHasKilledHasNotFailed) {
  const auto killed_now = [this](int signal) {
    WorkerExit exit = killed(signal);
    exit.at = now_;
    return exit;
  };
  for (const bool is_before : {false, true}) {
    use(options());
    run();
    if (is_before) exit(0, killed_now(SIGTERM));
    step(agent_event::DrainRequested{SIGTERM, seconds(50)});
    ASSERT_TRUE(has<agent_action::RequestDrain>());
    if (!is_before) {
      exit(0, killed_now(SIGTERM));
      for (const AgentAction& action : actions_) {
        const auto* sent = std::get_if<Send>(&action);
        EXPECT_FALSE(sent != nullptr && std::holds_alternative<rdzv::Failed>(sent->statement));
      }
    }
    EXPECT_EQ(agent_->state(), AgentState::kStopped) << is_before;
    EXPECT_THAT(reported(AgentEvent::Kind::kDrain), HasSubstr("has also ended a worker"));
  }
  use(options());
  run();
  step(agent_event::DrainRequested{SIGTERM, seconds(50)});
  now_ += drain::kNoticeEcho + Duration(1);
  exit(0, killed_now(SIGTERM));
  EXPECT_EQ(agent_->state(), AgentState::kUnhealthy);
  use(options());
  run();
  step(agent_event::DrainRequested{SIGTERM, seconds(50)});
  exit(0, killed_now(SIGSEGV));
  EXPECT_EQ(agent_->state(), AgentState::kUnhealthy);
}

TEST_F(AgentMachineTest, WithoutARoundARequestToDrainIsOneToStop) {
  step(RendezvousReady{"n", "10.0.0.1"});
  step(agent_event::DrainRequested{SIGTERM, seconds(20)});
  EXPECT_EQ(one<Finish>()->result.exit_code, 128 + SIGTERM);
}

TEST_F(AgentMachineTest, OrdersOfAStepReachTheGuardianAndItsAnswersTheCoordinator) {
  run();
  drain::Order ask;
  ask.round = 1;
  ask.proposal = 3;
  step(ask);
  ASSERT_TRUE(has<agent_action::SetStopStep>());
  drain::StopStepEvent steps;
  steps.proposal = one<agent_action::SetStopStep>()->request.proposal;
  steps.reporting = {0, 1};
  steps.newest = steps.oldest = 12;
  step(steps);
  ASSERT_TRUE(has<agent_action::Observe>());
  EXPECT_EQ(std::get<drain::Reply>(one<agent_action::Observe>()->message).newest, 12);
}

// ---- The beginning and the end.

TEST_F(AgentMachineTest, WorkersThatAreKeptWaitForATemplateAtMostItsLimit) {
  AgentMachineOptions with = in_place();
  with.template_limit = seconds(15);
  use(with);
  step(RendezvousReady{"n", "10.0.0.1"});
  EXPECT_TRUE(has<agent_action::AwaitTemplate>());
  EXPECT_FALSE(has<OpenStore>());
  wait_for(seconds(15));
  EXPECT_TRUE(has<OpenStore>());
  EXPECT_TRUE(step(agent_event::TemplateReady{}).actions_.empty());
}

TEST_F(AgentMachineTest, TheEndHasAnOrder) {
  run();
  succeed();
  ASSERT_TRUE(has<Finish>());
  step(agent_event::ResultFixed{false});
  EXPECT_TRUE(actions_.empty());
  tick();
  ASSERT_TRUE(has<agent_action::Flush>());
  EXPECT_EQ(one<agent_action::Flush>()->limit, seconds(30) + kStopMargin);
  EXPECT_FALSE(agent_->next_deadline());
  step(agent_event::Flushed{});
  EXPECT_FALSE(has<agent_action::Close>());
  tick();
  EXPECT_TRUE(has<agent_action::Close>());
  EXPECT_FALSE(agent_->next_deadline());
}

TEST_F(AgentMachineTest, AStoreThatOthersMayUseStaysUntilTheirWorkersHaveEnded) {
  run(2);
  succeed();
  step(agent_event::ResultFixed{true});
  EXPECT_THAT(reported(AgentEvent::Kind::kProgress), HasSubstr("keeping the round's store"));
  EXPECT_EQ(agent_->next_deadline(), now_ + seconds(30) + kStopMargin);
  step(rdzv::RoundOver{kSelf, round_ + 1});
  EXPECT_TRUE(actions_.empty()) << "of another round";
  step(rdzv::RoundOver{kSelf, round_});
  EXPECT_TRUE(has<agent_action::EndRound>());
  tick();
  EXPECT_TRUE(has<agent_action::Flush>());
}

TEST_F(AgentMachineTest, ALostRendezvousEndsTheRound) {
  run(2);
  step(RendezvousLost{kExitCoordinatorLost, "no reply"});
  EXPECT_TRUE(has<Stop>());
  EXPECT_TRUE(has<agent_action::EndRound>());
}

TEST_F(AgentMachineTest, AStopRequestEndsTheWaitForOtherNodes) {
  run(2);
  succeed();
  step(agent_event::ResultFixed{true});
  step(StopRequested{SIGTERM});
  tick();
  EXPECT_TRUE(has<agent_action::Flush>());
  step(StopRequested{SIGTERM});
  tick();
  EXPECT_TRUE(has<agent_action::Close>());
}

TEST_F(AgentMachineTest, ANodeThatLeavesFlushesForAShortTime) {
  step(RendezvousReady{"n", "10.0.0.1"});
  step(StopRequested{SIGTERM});
  step(agent_event::ResultFixed{});
  tick();
  EXPECT_EQ(one<agent_action::Flush>()->limit, Duration(kLeaveLimit));
  EXPECT_FALSE(one<agent_action::Flush>()->is_supervision_lost);
}

TEST_F(AgentMachineTest, ALostGuardianIsLetGo) {
  run();
  step(SupervisionLost{"the guardian was killed"});
  step(agent_event::ResultFixed{});
  tick();
  EXPECT_TRUE(one<agent_action::Flush>()->is_supervision_lost);
}

}  // namespace
}  // namespace elastic::core
