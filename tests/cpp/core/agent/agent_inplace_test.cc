// The agent's policy where workers are kept: the cut of a round, the wait for the next one, and
// everything that can happen in between.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/agent/agent_policy.h"
#include "core/agent/agent_policy_harness.h"

namespace elastic::core {
namespace {

using namespace agent_policy_test;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

struct KeepingFixture : Fixture {
  KeepingFixture() : Fixture(3, std::nullopt, seconds(5)) {}
  KeepingFixture& ready() {
    running().capable(0).capable(1).quiet();
    return *this;
  }
  // The grace includes the time of a cut.
  KeepingFixture& restart(std::uint64_t round, const std::string& reason = "m was lost") {
    feed(rdzv::Restart{{1, 2}, round, rdzv::RestartCause::kMemberLost, reason, seconds(12)});
    return *this;
  }
  // Waits for the next round, with its workers.
  KeepingFixture& kept() {
    ready().restart(1).left(0).left(1).quiet();
    return *this;
  }
};

TEST(AgentInPlace, WorkersThatLeaveTheRoundAreGivenTheNextOne) {
  KeepingFixture agent;
  EXPECT_THAT(agent.ready().restart(1).words(), ElementsAre("cut 1", "report stopping"));
  EXPECT_EQ(agent.message(), "m was lost; keeping the workers, which have 5 s to leave the round");
  EXPECT_EQ(agent.state(), AgentState::kUnhealthy);
  EXPECT_THAT(agent.left(1).words(), IsEmpty());
  EXPECT_THAT(agent.left(1).words(), IsEmpty()) << "repeated";
  EXPECT_THAT(agent.left(0).words(), ElementsAre("gone 1", "join 1"));
  EXPECT_EQ(agent.state(), AgentState::kInit);
  EXPECT_EQ(agent.policy().next_deadline(), std::nullopt);
  EXPECT_THAT(agent.round(2).words(), ElementsAre("report restarting", "continue 2"));
  EXPECT_EQ(agent.message(), "m was lost; continuing, 3 of 3 restarts left");
  EXPECT_EQ(agent.state(), AgentState::kHealthy);
  EXPECT_THAT(agent.started(0).started(1).words(),
              ElementsAre("report started", "report started", "report running"));
  EXPECT_THAT(agent.restart(2).words(), ElementsAre("cut 2", "report stopping"))
      << "they remain capable";
}

TEST(AgentInPlace, WorkersAreStoppedUnlessAllCanContinue) {
  KeepingFixture one;
  EXPECT_THAT(one.running().capable(0).capable(0).quiet().restart(1).words(),
              ElementsAre("stop 15 0.", "report stopping"));
  KeepingFixture done;
  EXPECT_THAT(done.ready().exit(0, exited(0)).quiet().restart(1).words(),
              ElementsAre("stop 15 0.", "report stopping"));
  KeepingFixture failed;
  EXPECT_THAT(failed.ready().exit(0, exited(1)).quiet().restart(1).words(),
              ElementsAre("stop 15 0.", "report stopping"));
  KeepingFixture evicted;
  EXPECT_THAT(evicted.ready().evicted(3).words(), ElementsAre("stop 15 10", "report stopping"))
      << "the others went on: what its workers know is old";
  Fixture off;
  EXPECT_THAT(off.running().capable(0).capable(1).quiet().restart(1).words(),
              ElementsAre("stop 15 5.", "report stopping"));
}

TEST(AgentInPlace, NewWorkersMustDeclareThemselvesAgain) {
  KeepingFixture agent;
  agent.ready().exit(0, exited(1)).restart(1).exit(1, stopped(killed(SIGTERM))).gone();
  agent.round(2).started(0).started(1).quiet();
  EXPECT_THAT(agent.restart(2).words(), ElementsAre("stop 15 7.", "report stopping"));
}

TEST(AgentInPlace, WorkersThatDoNotLeaveInTimeAreStopped) {
  KeepingFixture agent;
  agent.ready().restart(1).left(0).quiet();
  EXPECT_THAT(agent.wait().words(), ElementsAre("stop 15 7.", "report stopping"));
  EXPECT_EQ(agent.message(),
            "the workers did not leave the round within 5 s; stopping them, which have 7 s")
      << "the grace of the order";
  EXPECT_THAT(agent.left(1).words(), IsEmpty()) << "too late";
  EXPECT_THAT(agent.end_by_us().words(),
              ElementsAre("report exited", "report exited", "gone 1", "join 1"));
  EXPECT_THAT(agent.round(2).words(), ElementsAre("report restarting", "start"));
}

TEST(AgentInPlace, AWorkerThatEndsDuringTheCutEndsIt) {
  KeepingFixture failed;
  failed.ready().restart(1).quiet();
  EXPECT_THAT(failed.exit(0, exited(1)).words(),
              ElementsAre("report exited", "stop 15 7.", "report stopping", "failed 1"));
  EXPECT_THAT(failed.left(1).exit(1, stopped(killed(SIGTERM))).quiet().gone().words(),
              ElementsAre("gone 1", "join 1"));
  KeepingFixture done;
  done.ready().restart(1).left(1).quiet();
  EXPECT_THAT(done.exit(0, exited(0)).words(),
              ElementsAre("report exited", "stop 15 7.", "report stopping"));
}

TEST(AgentInPlace, ASecondOrderDoesNotCutAgain) {
  KeepingFixture agent;
  agent.ready().restart(1).quiet();
  EXPECT_THAT(agent.restart(1, "k was lost, too").words(), IsEmpty());
  EXPECT_THAT(agent.left(0).left(1).words(), ElementsAre("gone 1", "join 1"));
  EXPECT_THAT(agent.restart(4).words(), ElementsAre("join 4")) << "a round without this node";
  EXPECT_THAT(agent.round(5).words(), ElementsAre("report restarting", "continue 5"));
}

TEST(AgentInPlace, AnEvictionDuringTheCutStopsTheWorkers) {
  KeepingFixture agent;
  agent.ready().restart(1).left(0).quiet();
  EXPECT_THAT(agent.evicted(3).words(), ElementsAre("stop 15 10", "report stopping"));
  EXPECT_THAT(agent.end_by_us().words(), ElementsAre("report exited", "report exited", "join 3"));
}

TEST(AgentInPlace, TheEndOfTheJobStopsWorkersThatAreCutOrWait) {
  for (const bool is_kept : {false, true}) {
    KeepingFixture agent;
    if (is_kept) {
      agent.kept();
    } else {
      agent.ready().restart(1).quiet();
    }
    EXPECT_THAT(agent.failed(5, "m", 9).words(), ElementsAre("stop 15 10", "report stopping"));
    agent.left(0).left(1).quiet();
    EXPECT_THAT(agent.exit(0, stopped(killed(SIGTERM))).exit(1, stopped(killed(SIGTERM))).words(),
                ElementsAre("report exited", "report exited"));
    const auto last = agent.gone().words();
    ASSERT_FALSE(last.empty());
    EXPECT_EQ(last.back(), "finish 9");
  }
}

TEST(AgentInPlace, EvidenceOfAWorkerThatEndedWhileItWaitedCountsInTheNextRound) {
  KeepingFixture agent;
  agent.kept().exit(0, exited(1)).evidence(0, exited(1), 1, "OSError: disk full").round(2);
  EXPECT_EQ(std::get<rdzv::Failed>(agent.sent()).failure.evidence->error, "OSError: disk full");
}

TEST(AgentInPlace, AStopRequestStopsWorkersThatWait) {
  KeepingFixture agent;
  EXPECT_THAT(agent.kept().stop().words(), ElementsAre("leave", "stop 15 30", "report stopping"));
  EXPECT_THAT(agent.round(2).words(), IsEmpty());
  EXPECT_THAT(agent.stop().words(), ElementsAre("stop 15 5.", "report stopping"));
  EXPECT_THAT(agent.end_by_us().words(),
              ElementsAre("report exited", "report exited", "finish 143"));
}

TEST(AgentInPlace, TheLossOfTheRendezvousStopsWorkersThatWait) {
  KeepingFixture agent;
  agent.kept();
  EXPECT_THAT(agent.feed(RendezvousLost{kExitCoordinatorLost, "gone"}).words(),
              ElementsAre("stop 15 30", "report stopping"));
  EXPECT_THAT(agent.end_by_us().words(),
              ElementsAre("report exited", "report exited", "finish 77"));
}

TEST(AgentInPlace, AWorkerThatEndsWhileItWaitsFailsInTheNextRound) {
  for (const WorkerExit& exit : {killed(SIGKILL), exited(0)}) {
    KeepingFixture one;
    EXPECT_THAT(one.kept().exit(1, exit).words(), ElementsAre("stop 15 10", "report stopping"));
    EXPECT_THAT(one.round(2).words(),
                ElementsAre("report restarting", "continue 2", "report exited", "failed 2"));
    EXPECT_EQ(one.state(), AgentState::kUnhealthy);
    const FailureReport sent = std::get<rdzv::Failed>(one.sent()).failure;
    EXPECT_NE(sent.exit_code, 0);
    EXPECT_THAT(sent.message, EndsWith(" while it waited for the round"));
    EXPECT_THAT(one.restart(2).exit(0, stopped(killed(SIGTERM))).quiet().gone().words(),
                ElementsAre("gone 2", "join 2"));
    EXPECT_THAT(one.round(3).words(), ElementsAre("report restarting", "start"));
  }
}

TEST(AgentInPlace, WorkersThatAllEndWhileTheyWaitAreStartedInTheNextRound) {
  KeepingFixture agent;
  agent.kept().exit(0, killed(SIGKILL)).exit(1, stopped(killed(SIGTERM))).quiet();
  EXPECT_THAT(agent.gone().words(), ElementsAre("report exited", "report exited", "report notice"));
  EXPECT_EQ(agent.state(), AgentState::kInit);
  EXPECT_THAT(agent.round(2).words(), ElementsAre("report restarting", "start"));
}

// A node with random workers and a rendezvous that orders at random: the policy never starts
// workers beside others, continues only those that have left, and ends with none of them.
class RandomNode {
 public:
  explicit RandomNode(unsigned seed) : random_(seed), policy_(options(seed % 2 == 0)) {}

  void run() {
    feed(RendezvousReady{"n", "10.0.0.1"});
    for (int i = 0; i < 200 && !is_finished_; ++i) act();
    if (!is_finished_) feed(StopRequested{SIGTERM});
    for (int i = 0; i < 10 && !is_finished_; ++i) end_all();
    EXPECT_TRUE(is_finished_);
    EXPECT_NE(exit_code_, kExitSupervisionLost) << "an event contradicted the state";
    EXPECT_EQ(alive(), 0) << "finished with workers";
  }
  bool has_continued() const { return continued_ > 0; }

 private:
  enum class Phase : std::uint8_t { kNone, kRunning, kLeft, kEnded };

  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  int alive() const {
    return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](Phase one) {
      return one == Phase::kRunning || one == Phase::kLeft;
    }));
  }

  void act() {
    const int local_rank = pick(2);
    Phase& worker = workers_[static_cast<std::size_t>(local_rank)];
    switch (pick(10)) {
      case 0:
      case 1:
      case 2:
        if (is_joining_) begin_round();
        break;
      case 3:
        if (in_round_) order(rdzv::Restart{{}, round_, rdzv::RestartCause::kMemberLost, "m", {}});
        break;
      case 4:
      case 5:
      case 6:
        if (is_cut_ && worker == Phase::kRunning) {
          worker = Phase::kLeft;
          feed(WorkerLeft{local_rank});
        }
        break;
      case 7:
        if (pick(4) == 0 && (worker == Phase::kRunning || worker == Phase::kLeft)) {
          end(local_rank, pick(2) == 0 ? exited(0) : killed(SIGKILL));
        }
        break;
      case 8: end_stopped(); break;
      default:
        now_ += seconds(pick(7));
        feed(PolicyTick{});
        if (pick(30) == 0 && in_round_) order(rdzv::Evicted{{}, ++round_, "silence"});
        break;
    }
  }

  void begin_round() {
    is_joining_ = false;
    in_round_ = true;
    auto record = std::make_shared<RoundRecord>();
    record->round = ++round_;
    record->nodes = 1;
    record->world_size = 2;
    NodeAssignment own;
    own.local_world_size = 2;
    own.role_world_size = 2;
    feed(rdzv::Round{{}, std::move(record), own});
  }
  template <typename Order>
  void order(Order what) {
    in_round_ = false;
    feed(what);
  }
  void end(int local_rank, WorkerExit exit) {
    workers_[static_cast<std::size_t>(local_rank)] = Phase::kEnded;
    exit.stopped_by_us = exit.stopped_by_us || is_stopped_;
    feed(WorkerExited{local_rank, 1000 + local_rank, exit});
    if (alive() > 0) return;
    workers_.assign(2, Phase::kNone);
    is_stopped_ = false;
    feed(GroupGone{});
  }
  void end_stopped() {
    if (is_stopped_) end_all();
  }
  void end_all() {
    for (int i = 0; i < 2 && !is_finished_; ++i) {
      const Phase phase = workers_[static_cast<std::size_t>(i)];
      if (phase == Phase::kRunning || phase == Phase::kLeft) end(i, stopped(killed(SIGTERM)));
    }
  }

  void feed(const PolicyEvent& event) {
    std::vector<PolicyAction> actions;
    policy_.step(event, now_, &actions);
    for (const PolicyAction& action : actions)
      std::visit([this](const auto& one) { on(one); }, action);
  }
  void on(const Send& send) {
    if (std::holds_alternative<rdzv::Join>(send.statement)) is_joining_ = true;
    if (!std::holds_alternative<rdzv::Failed>(send.statement)) is_cut_ = false;
  }
  void on(const StartGroup&) {
    EXPECT_EQ(alive(), 0) << "started beside others";
    workers_.assign(2, Phase::kRunning);
    is_cut_ = is_stopped_ = false;
    for (int i = 0; i < 2; ++i) policy_.step(WorkerStarted{i, 1000 + i, {}}, now_, &ignored_);
    for (int i = 0; i < 2; ++i) policy_.step(WorkerCapable{i}, now_, &ignored_);
  }
  void on(const PrepareGroup&) {
    workers_.assign(2, Phase::kRunning);
    is_cut_ = true;  // they may leave the round that they are not in
  }
  void on(const ContinueGroup& next) {
    ++continued_;
    EXPECT_EQ(next.round->round, round_);
    for (Phase& worker : workers_) {
      EXPECT_TRUE(worker == Phase::kLeft || worker == Phase::kEnded)
          << "continued in its old round";
      if (worker == Phase::kLeft) worker = Phase::kRunning;
    }
    EXPECT_GT(alive(), 0);
  }
  void on(const CutGroup& cut) {
    EXPECT_EQ(cut.round, round_);
    EXPECT_EQ(alive(), 2);
    is_cut_ = true;
  }
  void on(const StopGroup&) {
    EXPECT_GT(alive(), 0);
    is_stopped_ = true;
    is_cut_ = false;
  }
  void on(const Report&) {}
  void on(const Finish& finish) {
    is_finished_ = true;
    exit_code_ = finish.result.exit_code;
  }

  static AgentPolicyOptions options(bool is_prepared) {
    AgentPolicyOptions options;
    options.node.id = {1, 2};
    options.node.local_world_size = 2;
    options.node.stop_grace = options.node.failure_grace = seconds(15);
    options.inplace_grace = seconds(5);
    if (is_prepared) options.inplace_prepare = seconds(20);
    return options;
  }

  std::mt19937 random_;
  AgentPolicy policy_;
  Instant now_ = at(100);
  std::uint64_t round_ = 0;
  bool is_joining_ = false;
  bool in_round_ = false;
  bool is_cut_ = false;
  bool is_stopped_ = false;
  bool is_finished_ = false;
  int continued_ = 0;
  int exit_code_ = -1;
  std::vector<Phase> workers_ = std::vector<Phase>(2, Phase::kNone);
  std::vector<PolicyAction> ignored_;
};

TEST(AgentInPlace, RandomSchedulesKeepTheRules) {
  int continued = 0;
  for (unsigned seed = 1; seed <= 3000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomNode node(seed);
    node.run();
    continued += node.has_continued() ? 1 : 0;
  }
  EXPECT_GT(continued, 1000) << "the schedules hardly reach the subject";
}

}  // namespace
}  // namespace elastic::core
