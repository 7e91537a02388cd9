// Rounds that end at an agreed step for nodes that join: seeded schedules of real machines, as in
// drain_property_test.cc. The stories are in tests/data/scenarios/drain.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/drain/drain_machine.h"
#include "core/drain/drain_world.h"

namespace elastic::core {
namespace {

using drain_sim::SimNode;
using std::chrono::seconds;

class GrowingWorld : private drain_sim::RandomSchedule {
 public:
  explicit GrowingWorld(std::uint64_t seed) : RandomSchedule(seed) {
    nodes_.resize(1 + below(3));
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].id = {7, i};
    can_leave_ = nodes_.size() > 1 && below(3) == 0;
    renew_round();
  }

  // "" if the properties hold: a round that ends at a step ends where every rank waits, and
  // otherwise no rank waits for ever.
  std::string run() {
    for (int turn = 0; turn < drain_sim::kScheduleTurnsMax; ++turn) {
      is_faulty_ = turn < drain_sim::kFaultyTurns;
      if (!is_faulty_ && has_notice_ && machine_.phase() == DrainPhase::kIdle && !waits_ &&
          (is_free() || all_exited())) {
        if (grown_at_step_ > 0 || all_exited() || ++attempts_ > 3) return "";
        give_notice();
      }
      for (SimNode& node : nodes_) note_order(node);
      one_turn(turn);
      if (const auto step = std::exchange(released_at_, std::nullopt); step && !all_wait(*step)) {
        return "a node was released before every rank waited";
      }
      for (const SimNode& node : nodes_) {
        if (!node.left_at) continue;
        end_round(false);
        break;
      }
      if (std::exchange(grows_, false) && waits_) end_round(true);
      if (waits_ && below(2000) == 0) {
        waits_ = false;
        feed(drain_event::GrowthOff{});
      }
      if (result_) return "the job was closed";
    }
    return describe();
  }
  int grown_at_step() const { return grown_at_step_; }

 private:
  void renew_round() {
    informed_.clear();
    begin_round(renew_nodes(2));
  }
  void end_round(bool has_grown) {
    if (has_grown) {
      const std::int64_t step = nodes_[0].ranks[0].tentative;
      if (step != drain::kNoStep && all_wait(step)) ++grown_at_step_;
    }
    waits_ = false;
    feed(drain_event::Ended{});
    renew_round();
  }
  // KeptReports: a node repeats the notice of the last order of its round.
  void note_order(const SimNode& node) {
    if (!node.orders.empty() && node.orders.front().notice.departure) informed_.insert(node.id);
  }

  void give_notice() override {
    if (can_leave_ && below(2) == 0) departure(seconds(60), {nodes_[0].id}, false);
    if (below(4) > 0) {
      for (SimNode& node : nodes_) report(node);
    }
    const bool is_refused_first = below(8) == 0;
    if (is_refused_first) request_too_much();
    waits_ = true;
    feed(drain_event::GrowthDue{1});
    if (!is_refused_first && below(8) == 0) request_too_much();
  }
  // No node would be left.
  void request_too_much() {
    std::vector<NodeId> all;
    for (const SimNode& node : nodes_) all.push_back(node.id);
    departure(seconds(60), all, false);
  }
  // To a coordinator that knows the nodes that wait, or does not yet.
  void repeat_notice(const SimNode& node) override {
    if (informed_.contains(node.id)) departure(seconds(60), {}, false);
    if (!waits_ || below(2) == 0) return;
    feed(drain_event::GrowthOff{});
    feed(drain_event::GrowthDue{1});
  }
  void fail_round(SimNode& node) override {
    if (below(2) == 0) feed(drain_event::Left{node.id});
    end_round(false);
    if (below(2) == 0) has_notice_ = false;  // others join later
  }

  bool can_leave_ = false;
  bool waits_ = false;  // nodes wait to join
  int grown_at_step_ = 0;
  int attempts_ = 0;  // after the faults
  std::set<NodeId> informed_;
};

TEST(DrainProperty, RoundsGrowWhereEveryRankWaitsAndNoRankWaitsForEver) {
  const char* const wanted = std::getenv("ELASTIC_DRAIN_SEEDS");
  const int seeds = wanted != nullptr ? std::atoi(wanted) : 150;
  int grown = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    GrowingWorld world(static_cast<std::uint64_t>(seed));
    ASSERT_EQ(world.run(), "") << "seed " << seed;
    grown += world.grown_at_step() > 0 ? 1 : 0;
  }
  EXPECT_GT(grown, seeds / 4);
}

}  // namespace
}  // namespace elastic::core
