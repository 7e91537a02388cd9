// The diagrams of docs/rendezvous.md are generated from the agent's table and from the messages of
// a simulated job. With ELASTIC_WRITE_DIAGRAMS=1 the test writes them to the page; otherwise it
// compares them with the page.

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/agent/agent_policy.h"
#include "core/base/random.h"
#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

std::string read_page() {
  std::ifstream file(ELASTIC_TEST_DOCS "rendezvous.md");
  std::stringstream page;
  page << file.rdbuf();
  return page.str();
}

// The page must contain `drawn` between the two comments of this name.
void expect_on_page(const std::string& name, const std::string& drawn) {
  const std::string begin = "<!-- drawn: " + name + " -->\n";
  const std::string end = "<!-- end: " + name + " -->\n";
  std::string page = read_page();
  const std::size_t from = page.find(begin);
  const std::size_t to = page.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to)
      << "docs/rendezvous.md has no place for the diagram " << name;
  const std::string block = "```mermaid\n" + drawn + "```\n";
  const std::size_t body = from + begin.size();
  if (std::getenv("ELASTIC_WRITE_DIAGRAMS") != nullptr) {
    std::ofstream(ELASTIC_TEST_DOCS "rendezvous.md") << page.replace(body, to - body, block);
    return;
  }
  EXPECT_EQ(page.substr(body, to - body), block)
      << "run this test with ELASTIC_WRITE_DIAGRAMS=1 and look at what has changed";
}

std::string_view name_of(RendezvousPhase phase) {
  static constexpr std::array<std::string_view, 3> kNames = {"forming", "running", "closed"};
  return kNames.at(static_cast<std::size_t>(phase));
}

// Feeds random events of a job's nodes, and records what ends each phase of the job.
class Wanderer {
 public:
  using Edges = std::map<std::pair<std::string, std::string>, std::set<std::string>>;

  explicit Wanderer(std::uint64_t seed) : chance_(seed) {
    for (std::uint64_t i = 0; i < kNodes; ++i) {
      nodes_[i].id = {1, i};
      nodes_[i].name = "node" + std::to_string(i);
      nodes_[i].address = "10.0.0." + std::to_string(i + 1);
      nodes_[i].store_port = 40'000;
    }
    settings_ = nnodes(2, 3);
    settings_.max_restarts = 2;
    settings_.restart_backoff = 1s;  // as in a job: zero would disable the delay of joins, too
    machine_.emplace(settings_, now_, Duration::zero());
  }

  void wander(int steps, Edges* edges) {
    for (int i = 0; i < steps; ++i) {
      now_ += std::chrono::milliseconds(pick(4000));
      core::NodeInfo& node = nodes_.at(pick(kNodes));
      const auto [name, event] = something(node);
      const RendezvousPhase before = machine_->phase();
      const std::uint64_t round = machine_->record().round;
      std::vector<core::RendezvousAction> sent;
      machine_->step(event, now_, &sent);
      receive(sent);
      const RendezvousPhase after = machine_->phase();
      if (before != after || machine_->record().round != round) {
        (*edges)[{std::string(name_of(before)), std::string(name_of(after))}].insert(name);
      }
    }
  }

 private:
  static constexpr std::uint64_t kNodes = 5;

  std::uint64_t pick(std::uint64_t below) { return chance_.next() % below; }

  std::pair<std::string, core::RendezvousEvent> something(const core::NodeInfo& node) {
    const std::uint64_t round = machine_->record().round;
    switch (pick(12)) {
      case 0: return {"Failed", rdzv::Failed{node.id, round, FailureReport{}}};
      case 1:
      case 2: return {"Gone", rdzv::Gone{node.id, round}};
      case 3: return {"Done", rdzv::Done{node.id, round}};
      case 4: return {"Leave", rdzv::Leave{node.id, "asked to stop"}};
      case 5: return {"SessionLost", rdzv::SessionLost{node.id}};
      case 6:
        if (pick(20) == 0) return {"Close", rdzv::Close{node.id, JobResult{}}};
        return {"Heartbeat", rdzv::Heartbeat{node.id}};
      case 7:
      case 8: return {"time", rdzv::Tick{}};
      default: return {"Join", rdzv::Join{node, settings_}};
    }
  }

  void receive(const std::vector<core::RendezvousAction>& sent) {
    for (const core::RendezvousAction& action : sent) {
      for (core::NodeInfo& node : nodes_) {
        const auto* round = std::get_if<rdzv::Round>(&action);
        const auto* restart = std::get_if<rdzv::Restart>(&action);
        const auto* evicted = std::get_if<rdzv::Evicted>(&action);
        std::uint64_t record_activity = 0;
        if (round != nullptr && round->to == node.id) record_activity = round->record->round;
        if (restart != nullptr && restart->to == node.id) record_activity = restart->round;
        if (evicted != nullptr && evicted->to == node.id) record_activity = evicted->round;
        node.highest_round = std::max(node.highest_round, record_activity);
      }
    }
  }

  Rng chance_;
  Instant now_ = Instant(1000s);
  JobSettings settings_;
  std::array<core::NodeInfo, kNodes> nodes_;
  std::optional<core::RendezvousMachine> machine_;
};

std::string draw_round() {
  Wanderer::Edges edges;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) Wanderer(seed).wander(500, &edges);
  std::string drawn = "stateDiagram-v2\n  [*] --> forming\n";
  for (const auto& [ends, causes] : edges) {
    drawn += "  " + ends.first + " --> " + ends.second + ": ";
    for (bool first = true; const std::string& cause : causes) {
      drawn += (first ? "" : ", ") + cause;
      first = false;
    }
    drawn += "\n";
  }
  return drawn;
}

// The states of an agent, which are those of its worker group, and the transitions between them. An
// event that contradicts the agent's state leads to UNKNOWN too; the diagram shows only the
// guardian's death.
std::string draw_states() {
  static constexpr std::array<std::string_view, core::kPolicyInputs> kNames = {
      "rendezvous ready",
      "rendezvous ready, workers first",
      "progress",
      "round",
      "stale",
      "restart",
      "restart",
      "restart",
      "job succeeded",
      "job ended",
      "job ended at a step",
      "worker started",
      "worker done",
      "worker failed",
      "bad node",
      "worker stopped",
      "unranked worker ended",
      "evidence",
      "worker can continue",
      "worker left the round",
      "workers left the round",
      "workers ended",
      "workers ended",
      "stop request",
      "stop request",
      "guardian lost",
      "timeout",
      "agreed step",
      "start abandoned",
      "stop sent",
      "waiting worker had failed",
      "bad node",
      "barrier over",
      "over",
      "stopped at a step"};
  // By the states that a user sees, each pair of them with the inputs that lead from one to the
  // other.
  std::map<std::pair<AgentState, AgentState>, std::vector<std::string>> causes;
  for (std::size_t from = 0; from < core::kPolicyStates; ++from) {
    const auto state = static_cast<core::PolicyState>(from);
    if (state == core::PolicyState::kFinished) continue;
    for (std::size_t input = 0; input < core::kPolicyInputs; ++input) {
      const auto& edge = core::AgentPolicy::edge_of(state, static_cast<core::PolicyInput>(input));
      const bool is_fault =
          edge.is_loss && input != static_cast<std::size_t>(core::PolicyInput::kSupervisionLost);
      const bool is_end = !edge.is_loss && edge.next == core::PolicyState::kFinished;
      const AgentState before = agent_state(state);
      const AgentState after = edge.is_loss ? AgentState::kUnknown : agent_state(edge.next);
      if (is_fault || is_end || before == after) continue;
      std::vector<std::string>& names = causes[{before, after}];
      const std::string name(kNames.at(input));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::string drawn = "stateDiagram-v2\n  [*] --> INIT\n";
  for (const auto& [ends, names] : causes) {
    drawn += std::string("  ") + to_string(ends.first) + " --> " + to_string(ends.second) + ": " +
             names.front();
    for (std::size_t i = 1; i < names.size(); ++i) drawn += ", " + names[i];
    drawn += "\n";
  }
  return drawn;
}

// Two agents with one worker each, a rendezvous, and all messages between them.
class Scene {
 public:
  Scene() : settings_(nnodes(2, 2)), machine_(settings_, now_, Duration::zero()) {
    settings_.max_restarts = 1;
    machine_ = core::RendezvousMachine(settings_, now_, Duration::zero());
    for (std::uint64_t i = 0; i < kAgents; ++i) {
      core::NodeInfo node;
      node.id = {1, i};
      node.local_world_size = 1;
      agents_.push_back(
          std::make_unique<core::AgentPolicy>(core::AgentPolicyOptions{node, settings_, {}}));
    }
  }

  void found(std::size_t agent) {
    feed(agent, core::RendezvousReady{"node" + std::to_string(agent),
                                      "10.0.0." + std::to_string(agent + 1)});
  }
  void fail_worker(std::size_t agent) {
    WorkerExit exit;
    exit.code = 1;
    exit_worker(agent, exit);
  }
  void draw(bool on) { is_drawing_ = on; }
  const std::string& drawn() const { return drawn_; }

 private:
  static constexpr std::size_t kAgents = 2;

  void arrow(const std::string& from, const std::string& to, const std::string& what) {
    if (is_drawing_) drawn_ += "  " + from + "->>" + to + ": " + what + "\n";
  }
  static std::string agent_name(std::size_t agent) { return "A" + std::to_string(agent); }
  static std::string worker_name(std::size_t agent) { return "W" + std::to_string(agent); }

  void exit_worker(std::size_t agent, WorkerExit exit) {
    exit.at = now_;
    const bool failed = !exit.stopped_by_us;
    arrow(worker_name(agent), agent_name(agent),
          failed ? "exits with " + std::to_string(exit.code) : "ends by SIGTERM");
    feed(agent, core::WorkerExited{0, 100, exit});
    feed(agent, core::GroupGone{});
  }

  // Messages are delivered in the order in which they were sent.
  void feed(std::size_t agent, const core::PolicyEvent& event) {
    queue_.emplace_back(agent, event);
    if (std::exchange(is_feeding_, true)) return;
    while (!queue_.empty()) {
      const auto [next, record_activity] = std::move(queue_.front());
      queue_.pop_front();
      now_ += std::chrono::milliseconds(1);
      std::vector<core::PolicyAction> actions;
      agents_[next]->step(record_activity, now_, &actions);
      for (const core::PolicyAction& action : actions) carry_out(next, action);
    }
    is_feeding_ = false;
  }

  void carry_out(std::size_t agent, const core::PolicyAction& action) {
    if (const auto* sent = std::get_if<core::Send>(&action)) {
      send(agent, sent->statement);
    } else if (std::holds_alternative<core::StartGroup>(action)) {
      arrow(agent_name(agent), worker_name(agent), "start");
      feed(agent, core::WorkerStarted{0, 100, now_});
    } else if (std::holds_alternative<core::StopGroup>(action)) {
      arrow(agent_name(agent), worker_name(agent), "SIGTERM, and SIGKILL after the grace");
      WorkerExit exit;
      exit.kind = ExitKind::kSignaled;
      exit.signal = SIGTERM;
      exit.stopped_by_us = true;
      exit_worker(agent, exit);
    }
  }

  void send(std::size_t agent, core::NodeStatement statement) {
    static constexpr std::array<std::string_view, 6> kNames = {"Join", "Failed", "Gone",
                                                               "Done", "Leave",  "Close"};
    arrow(agent_name(agent), "R", std::string(kNames.at(statement.index())));
    if (auto* join = std::get_if<rdzv::Join>(&statement)) join->node.store_port = 40'000;
    std::vector<core::RendezvousAction> actions;
    std::visit([&](const auto& one) { machine_.step(one, now_, &actions); }, statement);
    for (const core::RendezvousAction& action : actions) deliver(action);
  }

  void deliver(const core::RendezvousAction& action) {
    if (const auto* round = std::get_if<rdzv::Round>(&action)) {
      arrow("R", agent_name(round->to.low),
            "Round " + std::to_string(round->record->round) + ", rank " +
                std::to_string(round->own.group_rank) + " of " +
                std::to_string(round->record->nodes));
      feed(round->to.low, *round);
    } else if (const auto* restart = std::get_if<rdzv::Restart>(&action)) {
      arrow("R", agent_name(restart->to.low), "Restart");
      feed(restart->to.low, *restart);
    }
  }

  Instant now_ = Instant(1000s);
  JobSettings settings_;
  core::RendezvousMachine machine_;
  std::vector<std::unique_ptr<core::AgentPolicy>> agents_;
  std::deque<std::pair<std::size_t, core::PolicyEvent>> queue_;
  bool is_feeding_ = false;
  bool is_drawing_ = false;
  std::string drawn_ =
      "sequenceDiagram\n  participant W0 as worker 0\n  participant A0 as agent 0\n"
      "  participant R as rendezvous\n  participant A1 as agent 1\n"
      "  participant W1 as worker 1\n";
};

std::string draw_restart() {
  Scene scene;
  scene.found(0);
  scene.found(1);
  scene.draw(true);
  scene.fail_worker(0);
  return scene.drawn();
}

TEST(Diagrams, DocumentShowsThePhasesOfARound) { expect_on_page("round", draw_round()); }

TEST(Diagrams, DocumentShowsTheStatesOfAnAgent) { expect_on_page("states", draw_states()); }

TEST(Diagrams, DocumentShowsTheRestartAfterAWorkerFailure) {
  expect_on_page("restart", draw_restart());
}

}  // namespace
}  // namespace elastic::test
