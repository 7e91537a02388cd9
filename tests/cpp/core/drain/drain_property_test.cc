// Never two different steps: seeded schedules of real machines of the coordinator and of the nodes,
// with workers that race with the tentative word, broken sessions, new coordinators, and nodes that
// die. Faults end after a while, and then every job has to end.
//
// ELASTIC_DRAIN_SEEDS=100000 runs a long campaign; a failing test prints its seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/drain/drain_world.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using drain::kNoStep;
using drain_sim::Rank;
using drain_sim::SimNode;
using std::chrono::milliseconds;
using std::chrono::seconds;

class RandomWorld : private drain_sim::RandomSchedule {
 public:
  explicit RandomWorld(std::uint64_t seed) : RandomSchedule(seed) {
    nodes_.resize(1 + below(3));
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].id = {7, i};
    renew_round();
  }

  // "" if the properties hold.
  std::string run() {
    for (int turn = 0; turn < drain_sim::kScheduleTurnsMax && !result_; ++turn) {
      is_faulty_ = turn < drain_sim::kFaultyTurns;
      one_turn(turn);
      if (std::string fault = check(); !fault.empty()) return fault;
      if (!has_notice_ || result_) continue;
      if (all_exited() && is_quiet()) break;  // they finished before the step: success
    }
    if (!result_) {
      if (all_exited() && stops().empty()) return "";
      return describe();
    }
    if (result_->exit_code != kExitStoppedAtStep) return "";
    if (stops().size() != 1) return "reported as agreed with " + std::to_string(stops().size());
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        const bool is_satisfied = rank.stopped_at != kNoStep || rank.step >= rank.last_step;
        if (!rank.is_silent && !is_satisfied) return "a rank has neither stopped nor finished";
      }
    }
    return "";
  }

 private:
  void renew_round() {
    const std::int64_t begin = renew_nodes(3, 400);
    for (SimNode& node : nodes_) {
      for (Rank& rank : node.ranks) rank.is_silent = below(20) == 0;
    }
    begin_round(begin);
  }

  void give_notice() override { notice(seconds(60), "the test"); }
  void repeat_notice(const SimNode& /*node*/) override { notice(seconds(60), "again"); }
  void fail_round(SimNode& node) override {
    if (below(2) == 0) feed(drain_event::Left{node.id});
    feed(drain_event::Ended{});
    renew_round();
  }

  bool is_quiet() const { return stops().empty() && !is_faulty_; }
};

TEST(DrainProperty, NeverTwoDifferentSteps) {
  const char* const wanted = std::getenv("ELASTIC_DRAIN_SEEDS");
  const int seeds = wanted != nullptr ? std::atoi(wanted) : 150;
  for (int seed = 1; seed <= seeds; ++seed) {
    const std::string fault = RandomWorld(static_cast<std::uint64_t>(seed)).run();
    ASSERT_EQ(fault, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace elastic::core
