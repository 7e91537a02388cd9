#pragma once

// For tests of the agent's machine: an agent of two workers, and what it did in the last step.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/agent/agent_machine.h"
#include "core/workers/worker_exits.h"

namespace elastic::core {

using std::chrono::seconds;

// An agent of two workers, ranks 0 and 1, or 2 and 3 on the second of two nodes.
class AgentMachineTest : public ::testing::Test {
 public:  // calls are chained
  static constexpr NodeId kSelf{1, 1};
  using OpenStore = agent_action::OpenStore;
  using Stop = agent_action::StopWorkers;
  using Collect = agent_action::CollectStacks;

  static AgentMachineOptions options() {
    AgentMachineOptions options;
    options.policy.node.id = kSelf;
    options.policy.node.local_world_size = 2;
    options.policy.node.stop_grace = options.policy.node.failure_grace = seconds(30);
    options.host_name = "node7";
    options.policy.agent.stop_grace = seconds(30);
    options.policy.agent.reach_timeout = {};
    return options;
  }
  static AgentMachineOptions with_stacks() {
    AgentMachineOptions with = options();
    with.policy.agent.stacks_on_failure = true;
    return with;
  }
  static AgentMachineOptions in_place() {
    AgentMachineOptions with = options();
    with.policy.agent.inplace_grace = seconds(5);
    return with;
  }
  void use(const AgentMachineOptions& options) { agent_.emplace(options); }

  AgentMachineTest& step(const AgentInput& input) {
    actions_.clear();
    agent_->step(input, now_, &actions_);
    return *this;
  }
  // Until then nothing is due, and there it is.
  void wait_for(Duration limit) {
    const Instant due = now_ + limit;
    ASSERT_EQ(agent_->next_deadline(), due);
    now_ = due - Duration(1);
    EXPECT_TRUE(step(PolicyTick{}).actions_.empty());
    now_ = due;
    step(PolicyTick{});
  }
  void tick() {
    ASSERT_EQ(agent_->next_deadline(), now_);
    step(PolicyTick{});
  }
  void form_round(int nodes = 1, ResumePoint resume = {}, std::vector<HeldSource> sources = {}) {
    auto record = std::make_shared<RoundRecord>();
    record->round = ++round_;
    record->nodes = nodes;
    record->world_size = 2 * nodes;
    record->master_addr = "10.0.0.1";
    record->master_port = 29500;
    record->resume = resume;
    NodeAssignment own;
    own.group_rank = nodes - 1;
    own.local_world_size = 2;
    own.base_rank = 2 * own.group_rank;
    step(rdzv::Round{kSelf, std::move(record), own, nullptr, std::move(sources)});
  }
  void begin_round(int nodes = 1) {
    form_round(nodes);
    step(agent_event::FilesOpened{});
  }
  void run(int nodes = 1) {
    step(RendezvousReady{"n", "10.0.0.1"});
    begin_round(nodes);
    for (const int worker : {0, 1}) step(WorkerStarted{worker, 1000 + worker, now_});
  }
  AgentMachineTest& exit(int worker, const WorkerExit& exit) {
    return step(WorkerExited{worker, 1000 + worker, exit});
  }
  AgentMachineTest& restart(rdzv::RestartCause cause = rdzv::RestartCause::kMemberLost) {
    return step(rdzv::Restart{kSelf, round_, cause, "m was lost", seconds(5)});
  }
  void succeed() {
    exit(0, exited(0))
        .exit(1, exited(0))
        .step(agent_event::ProcessesEnded{})
        .step(agent_event::FailuresExamined{});
    JobResult result;
    result.outcome = JobOutcome::kSucceeded;
    step(rdzv::Closed{kSelf, std::make_shared<const JobResult>(result)});
  }

  template <typename Action>
  std::optional<Action> one() const {
    std::optional<Action> found;
    for (const AgentAction& action : actions_) {
      if (const auto* it = std::get_if<Action>(&action)) found = *it;
    }
    return found;
  }
  template <typename Action>
  bool has() const {
    return one<Action>().has_value();
  }
  std::string reported(AgentEvent::Kind kind) const {
    for (const AgentAction& action : actions_) {
      const auto* it = std::get_if<Report>(&action);
      if (it != nullptr && it->event.kind == kind) return it->event.message;
    }
    return "";
  }

  Instant now_ = Instant(seconds(100));
  std::uint64_t round_ = 0;
  std::optional<AgentMachine> agent_{options()};
  std::vector<AgentAction> actions_;
};

}  // namespace elastic::core
