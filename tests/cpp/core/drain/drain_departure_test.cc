// Nodes that leave at an agreed step while the others continue: seeded schedules of real machines,
// as in drain_property_test.cc. The stories are in tests/data/scenarios/drain.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/drain/drain_machine.h"
#include "core/drain/drain_world.h"

namespace elastic::core {
namespace {

using drain_sim::SimNode;
using std::chrono::seconds;

class DepartingWorld : private drain_sim::RandomSchedule {
 public:
  explicit DepartingWorld(std::uint64_t seed) : RandomSchedule(seed) {
    nodes_.resize(2 + below(3));
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].id = {7, i};
    const std::size_t leaving = 1 + below(nodes_.size() - 1);
    for (std::size_t i = 0; i < leaving; ++i) leaving_.push_back(nodes_[i].id);
    renew_round();
  }

  // "" if the properties hold: a node leaves only where every rank of the round waits, and no rank
  // waits for ever.
  std::string run() {
    for (int turn = 0; turn < drain_sim::kScheduleTurnsMax; ++turn) {
      is_faulty_ = turn < drain_sim::kFaultyTurns;
      one_turn(turn);
      if (const auto step = std::exchange(released_at_, std::nullopt); step && !all_wait(*step)) {
        return "a node was released before every rank waited";
      }
      for (const SimNode& node : nodes_) {
        if (node.left_at && !all_wait(*node.left_at)) return "a rank went on without a node";
      }
      if (result_) return "the job was closed";
      if (has_notice_ && !is_faulty_ && (has_left() || all_exited())) return "";
      if (has_notice_ && !is_faulty_ && machine_.phase() == DrainPhase::kIdle && is_free())
        return "";
    }
    return describe();
  }
  // The first that leaves ends the round.
  bool has_left() const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [](const SimNode& node) { return node.left_at.has_value(); });
  }

 private:
  void renew_round() {
    released_at_.reset();
    begin_round(renew_nodes(3));
  }

  void give_notice() override { departure(seconds(60), leaving_, false); }
  void repeat_notice(const SimNode& /*node*/) override { give_notice(); }
  bool may_fail() const override { return !has_left(); }
  void fail_round(SimNode& /*node*/) override {
    feed(drain_event::Ended{});
    renew_round();
  }

  std::vector<NodeId> leaving_;
};

TEST(DrainProperty, NodesLeaveOnlyWhereEveryRankWaits) {
  const char* const wanted = std::getenv("ELASTIC_DRAIN_SEEDS");
  const int seeds = wanted != nullptr ? std::atoi(wanted) : 150;
  int left = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    DepartingWorld world(static_cast<std::uint64_t>(seed));
    ASSERT_EQ(world.run(), "") << "seed " << seed;
    left += world.has_left() ? 1 : 0;
  }
  EXPECT_GT(left, seeds / 2);
}

}  // namespace
}  // namespace elastic::core
