// Seeded schedules of real machines of the coordinator and of the nodes, with workers that race
// with the tentative word, broken sessions, new coordinators, and nodes that die. Faults end after
// a while, and then every job has to end. The stories are in tests/data/scenarios/drain.
//
// ELASTIC_DRAIN_SEEDS=100000 runs a long campaign; a failing test prints its seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/drain/drain_machine.h"
#include "core/drain/drain_world.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using drain::kNoStep;
using drain_sim::Rank;
using drain_sim::SimNode;
using std::chrono::seconds;

// In this share of the seeds, at least, the schedule reaches what it is about.
template <typename Schedule>
void expect_properties(double share) {
  const char* const wanted = std::getenv("ELASTIC_DRAIN_SEEDS");
  const int seeds = wanted != nullptr ? std::atoi(wanted) : 150;
  int reached = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    Schedule schedule(static_cast<std::uint64_t>(seed));
    ASSERT_EQ(schedule.run(), "") << "seed " << seed;
    reached += schedule.has_reached_it() ? 1 : 0;
  }
  EXPECT_GT(reached, share * seeds);
}

// All ranks stop at one step.
class RandomWorld : private drain_sim::RandomSchedule {
 public:
  explicit RandomWorld(std::uint64_t seed) : RandomSchedule(seed) {
    add_nodes(1 + below(3));
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
  bool has_reached_it() const { return result_ && result_->exit_code == kExitStoppedAtStep; }

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
    if (below(2) == 0) feed(round_event::Left{node.id});
    feed(round_event::Ended{});
    renew_round();
  }

  bool is_quiet() const { return stops().empty() && !is_faulty_; }
};

TEST(DrainProperty, NeverTwoDifferentSteps) { expect_properties<RandomWorld>(0); }

// Nodes leave while the others continue.
class DepartingWorld : private drain_sim::RandomSchedule {
 public:
  explicit DepartingWorld(std::uint64_t seed) : RandomSchedule(seed) {
    add_nodes(2 + below(3));
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
  bool has_reached_it() const { return has_left(); }

 private:
  // The first that leaves ends the round.
  bool has_left() const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [](const SimNode& node) { return node.left_at.has_value(); });
  }
  void renew_round() {
    released_at_.reset();
    begin_round(renew_nodes(3));
  }

  void give_notice() override { departure(seconds(60), leaving_, false); }
  void repeat_notice(const SimNode& /*node*/) override { give_notice(); }
  bool may_fail() const override { return !has_left(); }
  void fail_round(SimNode& /*node*/) override {
    feed(round_event::Ended{});
    renew_round();
  }

  std::vector<NodeId> leaving_;
};

TEST(DrainProperty, NodesLeaveOnlyWhereEveryRankWaits) { expect_properties<DepartingWorld>(0.5); }

// Rounds end for nodes that join.
class GrowingWorld : private drain_sim::RandomSchedule {
 public:
  explicit GrowingWorld(std::uint64_t seed) : RandomSchedule(seed) {
    add_nodes(1 + below(3));
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
  bool has_reached_it() const { return grown_at_step_ > 0; }

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
    feed(round_event::Ended{});
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
    if (below(2) == 0) feed(round_event::Left{node.id});
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
  expect_properties<GrowingWorld>(0.25);
}

}  // namespace
}  // namespace elastic::core
