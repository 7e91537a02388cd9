// The agent's policy under random schedules of workers that are kept, or started before their node
// joins. The stories are in tests/data/scenarios/agent.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <random>
#include <vector>

#include "core/agent/agent_policy.h"
#include "core/workers/worker_exits.h"
#include "support/instant.h"

namespace elastic::core {
namespace {

using std::chrono::seconds;
using support::at;

constexpr int kBadNode = 90;
constexpr int kFinal = 97;

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
  // The round ends without this node while its workers are kept for the next one.
  void run_until_excluded() {
    feed(RendezvousReady{"n", "10.0.0.1"});
    begin_round();
    order(rdzv::Restart{{}, round_, rdzv::RestartCause::kGrowth, "1 node leaves", {}});
    for (int i = 0; i < 2; ++i) {
      workers_[static_cast<std::size_t>(i)] = Phase::kLeft;
      feed(WorkerLeft{i});
    }
    ASSERT_TRUE(is_joining_);
    ASSERT_EQ(alive(), 2);
    rdzv::Refused refused;
    refused.error = Status(StatusCode::kFailedPrecondition, "host n is excluded");
    refused.is_excluded = true;
    feed(refused);
    EXPECT_TRUE(is_stopped_);
    end_all();
    EXPECT_TRUE(is_finished_);
    EXPECT_EQ(exit_code_, kExitBadHost);
    EXPECT_EQ(alive(), 0);
  }

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
          const std::array ends = {exited(0), killed(SIGKILL), exited(kBadNode), exited(kFinal)};
          end(local_rank, ends[static_cast<std::size_t>(pick(4))]);
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
  void on(const CorrectResult&) {}
  void on(const Finish& finish) {
    is_finished_ = true;
    exit_code_ = finish.result.exit_code;
  }

  static AgentPolicyOptions options(bool is_prepared) {
    AgentPolicyOptions options;
    options.node.id = {1, 2};
    options.node.local_world_size = 2;
    options.node.stop_grace = options.node.failure_grace = seconds(15);
    options.agent.inplace_grace = seconds(5);
    options.agent.bad_node_codes = {kBadNode};
    options.agent.no_restart_codes = {kFinal};
    if (is_prepared) options.agent.inplace_prepare = seconds(20);
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

TEST(AgentInPlace, WorkersThatWereKeptEndIfTheirHostIsExcluded) {
  RandomNode(1).run_until_excluded();
}

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
