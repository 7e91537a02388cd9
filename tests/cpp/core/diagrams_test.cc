// The diagrams of docs/rendezvous.md are drawn by the machines themselves: from the agent's table,
// and from what a job of real machines does. With ELASTIC_WRITE_DIAGRAMS=1 the page gets what they
// draw today; without, it is compared.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/rendezvous_harness.h"
#include "core/rng.h"

namespace elastic::test {
namespace {

std::string read_page() {
  std::ifstream file(ELASTIC_RENDEZVOUS_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  return page.str();
}

// The page must have `drawn` between the two comments of this name.
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
    std::ofstream(ELASTIC_RENDEZVOUS_PAGE) << page.replace(body, to - body, block);
    return;
  }
  EXPECT_EQ(page.substr(body, to - body), block)
      << "run this test with ELASTIC_WRITE_DIAGRAMS=1 and look at what has changed";
}

std::string_view name_of(RendezvousPhase phase) {
  static constexpr std::array<std::string_view, 3> kNames = {"forming", "running", "closed"};
  return kNames.at(static_cast<std::size_t>(phase));
}

// What ends a phase of a job whose nodes do whatever they like.
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
    machine_.emplace(settings_, now_, Duration::zero());
  }

  void wander(int steps, Edges* edges) {
    for (int i = 0; i < steps; ++i) {
      now_ += std::chrono::milliseconds(pick(4000));
      NodeInfo& node = nodes_.at(pick(kNodes));
      const auto [name, event] = something(node);
      const RendezvousPhase before = machine_->phase();
      const std::uint64_t round = machine_->record().round;
      std::vector<RendezvousAction> said;
      machine_->step(event, now_, &said);
      hear(said);
      const RendezvousPhase after = machine_->phase();
      if (before != after || machine_->record().round != round) {
        (*edges)[{std::string(name_of(before)), std::string(name_of(after))}].insert(name);
      }
    }
  }

 private:
  static constexpr std::uint64_t kNodes = 5;

  std::uint64_t pick(std::uint64_t below) { return chance_.next() % below; }

  std::pair<std::string, RendezvousEvent> something(const NodeInfo& node) {
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

  void hear(const std::vector<RendezvousAction>& said) {
    for (const RendezvousAction& action : said) {
      for (NodeInfo& node : nodes_) {
        const auto* round = std::get_if<rdzv::Round>(&action);
        const auto* restart = std::get_if<rdzv::Restart>(&action);
        const auto* evicted = std::get_if<rdzv::Evicted>(&action);
        std::uint64_t heard = 0;
        if (round != nullptr && round->to == node.id) heard = round->record->round;
        if (restart != nullptr && restart->to == node.id) heard = restart->round;
        if (evicted != nullptr && evicted->to == node.id) heard = evicted->round;
        node.highest_round = std::max(node.highest_round, heard);
      }
    }
  }

  Rng chance_;
  Instant now_ = Instant(1000s);
  JobSettings settings_;
  std::array<NodeInfo, kNodes> nodes_;
  std::optional<Rendezvous> machine_;
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

TEST(Diagrams, ThePageShowsThePhasesOfARound) { expect_on_page("round", draw_round()); }

}  // namespace
}  // namespace elastic::test
