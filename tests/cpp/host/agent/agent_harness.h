#pragma once

// For tests of agents with real workers.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elastic/agent.h"
#include "elastic/coordinator.h"
#include "host/workers/worker_group_harness.h"

namespace elastic::support {

inline WorkerTemplate worker(std::vector<std::string> argv,
                             StreamTarget stdout_target = StreamTarget::kInherit) {
  WorkerTemplate made;
  made.argv = std::move(argv);
  made.stdout_target = stdout_target;
  return made;
}

inline WorkerTemplate stub_worker(std::vector<std::string> arguments,
                                  StreamTarget stdout_target = StreamTarget::kInherit) {
  return worker(stub(std::move(arguments)).argv, stdout_target);
}

inline WorkerTemplate shell(const std::string& script,
                            StreamTarget stdout_target = StreamTarget::kInherit) {
  return worker({"/bin/sh", "-c", script}, stdout_target);
}

inline AgentOptions options_of(std::vector<WorkerTemplate> workers) {
  AgentOptions options;
  options.workers = std::move(workers);
  options.env = {"PATH=/usr/bin:/bin"};
  options.guardian.guardian_path = ELASTIC_TEST_GUARDIAN;
  return options;
}

class RunningAgent {
 public:
  using Kind = AgentEvent::Kind;

  explicit RunningAgent(AgentOptions options) {
    auto agent = Agent::start(std::move(options));
    EXPECT_TRUE(agent.ok()) << agent.status().message();
    if (agent.ok()) agent_ = std::move(*agent);
  }
  Agent* operator->() { return agent_.get(); }

  // Waits for the next event of this kind; all events are kept in `seen`.
  AgentEvent wait_for(Kind kind) {
    while (auto event = agent_->next_event(generous_deadline())) {
      seen.push_back(*event);
      if (event->kind == kind) return *event;
    }
    ADD_FAILURE() << "no event of kind " << static_cast<int>(kind);
    return {};
  }
  const AgentResult& finish() {
    wait_for(Kind::kFinished);
    return agent_->result();
  }
  // The events of this kind that were received so far.
  std::vector<AgentEvent> all(Kind kind) const {
    std::vector<AgentEvent> found;
    for (const AgentEvent& event : seen) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }
  void destroy() { agent_.reset(); }

  std::vector<AgentEvent> seen;

 private:
  std::unique_ptr<Agent> agent_;
};

// Nodes of one job, with a coordinator in this process.
class AgentsOfAJob : public ::testing::Test {
 protected:
  AgentsOfAJob() {
    auto coordinator = Coordinator::start({});
    EXPECT_TRUE(coordinator.ok()) << coordinator.status().message();
    coordinator_ = *std::move(coordinator);
  }
  AgentOptions node(std::vector<WorkerTemplate> workers, int min_nodes, int max_nodes) const {
    AgentOptions options = options_of(std::move(workers));
    options.rendezvous.endpoint_host = "127.0.0.1";
    options.rendezvous.endpoint_port = coordinator_->port();
    options.rendezvous.is_host = false;
    options.rendezvous.settings.min_nodes = min_nodes;
    options.rendezvous.settings.max_nodes = max_nodes;
    return options;
  }

  std::unique_ptr<Coordinator> coordinator_;
};

inline AgentResult run(AgentOptions options) { return RunningAgent(std::move(options)).finish(); }

}  // namespace elastic::support
