// The loss of the coordinator at every point of an agreement, from the first question to the last
// exit: all ranks stop at one step, or none does and the job reports why.
//
// Every run has the same schedule up to its loss. What the coordinator has sent and a node has not
// received yet is lost or delivered, in all combinations.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "core/drain/drain_world.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using drain_sim::Rank;
using drain_sim::SimNode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kNoticeTurn = 20;
constexpr int kTurnsWithoutCoordinator = 6;
constexpr int kTurnsMax = 20'000;
constexpr seconds kLimit{100};

enum class Loss : std::uint8_t {
  kProcess,       // the next coordinator serves the same nodes
  kHost,          // a node of the round is lost as well: the next round has the others
  kUntilTooLate,  // the next one comes after the deadline
};

// How far the agreement had come.
enum class Point : std::uint8_t { kAsked, kProposed, kAccepted, kPartlyCommitted, kCommitted };
constexpr std::size_t kPoints = 5;

struct Schedule {
  std::size_t nodes = 2;
  bool is_lockstep = true;  // else some ranks are faster, and refuse the first steps
  Loss loss = Loss::kProcess;
  int lost_after = -1;       // so many deliveries; -1: never
  std::uint64_t received{};  // the nodes that receive what was sent before the loss
};

class LossWorld : private drain_sim::World {
 public:
  explicit LossWorld(const Schedule& schedule) : schedule_(schedule) {
    add_nodes(schedule.nodes);
    new_ranks();
    begin_round(1);
    knows_notice_.insert(nodes_.back().id);  // the node that receives the signal
  }

  // "" if the properties hold.
  std::string run() {
    for (; turn_ < kTurnsMax && !result_; ++turn_) {
      if (turn_ == kNoticeTurn) notice(kLimit, "SIGTERM on node");
      if (lost_turn_) next_coordinator(turn_ - *lost_turn_);
      one_turn();
      if (std::string fault = check(); !fault.empty()) return fault;
    }
    if (!result_) return describe();
    return check_result();
  }

  int deliveries() const { return deliveries_; }
  std::optional<Point> point() const { return point_; }

 private:
  void new_ranks() {
    for (SimNode& node : nodes_) {
      const NodeId id = node.id;
      node = {};
      node.id = id;
      node.ranks.resize(2);
      for (Rank& rank : node.ranks) rank.last_step = std::int64_t{1} << 40;
    }
  }

  void one_turn() {
    int pace = 1;
    for (SimNode& node : nodes_) {
      for (Rank& rank : node.ranks) {
        for (int i = 0; i < pace; ++i) advance(rank, !schedule_.is_lockstep);
        if (!schedule_.is_lockstep) pace = pace % 5 + 2;
      }
      const bool has_request = node.tentative || !node.requests.empty();
      guard(node);
      count(has_request);
      const bool has_order = !node.orders.empty();
      receive_order(node);
      count(has_order);
      const bool has_event = !node.events.empty();
      deliver_event(node);
      count(has_event);
      const bool has_reply = !node.replies.empty();
      deliver_reply(node);
      count(has_reply);
      report(node);
    }
    now_ += milliseconds(1);
    if (const auto next = machine_.next_deadline(); next && now_ >= *next) {
      feed(PartTick{});
    }
  }

  void receive_order(SimNode& node) {
    if (!node.orders.empty()) knows_notice_.insert(node.id);  // each order repeats it
    deliver_order(node);
  }

  void count(bool is_delivered) {
    if (is_delivered && !lost_turn_ && ++deliveries_ == schedule_.lost_after) lose_coordinator();
  }

  void lose_coordinator() {
    const DrainPhase phase = machine_.phase();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if ((schedule_.received >> i & 1) == 0) continue;
      while (!nodes_[i].orders.empty()) receive_order(nodes_[i]);
    }
    std::size_t committed = 0;
    for (const SimNode& node : nodes_) committed += node.member.is_committed() ? 1 : 0;
    if (committed == nodes_.size()) {
      point_ = Point::kCommitted;
    } else if (committed > 0) {
      point_ = Point::kPartlyCommitted;
    } else if (phase == DrainPhase::kCommitted) {
      point_ = Point::kAccepted;
    } else {
      point_ = phase == DrainPhase::kProposed ? Point::kProposed : Point::kAsked;
    }
    replace_coordinator();
    lost_turn_ = turn_;
    if (schedule_.loss == Loss::kHost) nodes_.front().ranks.clear();
    if (schedule_.loss == Loss::kUntilTooLate) now_ += 2 * kLimit;
  }

  // The nodes resume one after the other, beginning with another one in each run.
  void next_coordinator(int turns) {
    if (turns < kTurnsWithoutCoordinator) return;
    const auto index = static_cast<std::size_t>(turns - kTurnsWithoutCoordinator);
    if (index < schedule_.nodes) {
      const auto first = static_cast<std::size_t>(schedule_.lost_after);
      SimNode& node = nodes_[(first + index) % schedule_.nodes];
      if (schedule_.loss == Loss::kHost && node.id == nodes_.front().id) return;
      resume(node);
      if (!knows_notice_.contains(node.id)) return;
      const Instant deadline = Instant{seconds(1000)} + milliseconds(kNoticeTurn) + kLimit;
      notice(std::max<Duration>(deadline - now_, Duration::zero()), "SIGTERM on node");
    } else if (index == schedule_.nodes && schedule_.loss == Loss::kHost) {
      feed(round_event::Ended{});
      nodes_.erase(nodes_.begin());
      new_ranks();
      begin_round(1000);
    }
  }

  std::string check_result() const {
    const auto found = stops();
    // What a node knows to be committed is kept, also after the deadline: ranks may be saving.
    const bool is_committed = point_ == Point::kCommitted || point_ == Point::kPartlyCommitted;
    const bool have_all_stopped =
        std::all_of(nodes_.begin(), nodes_.end(), [](const SimNode& node) {
          return std::all_of(node.ranks.begin(), node.ranks.end(),
                             [](const Rank& rank) { return rank.stopped_at >= 0; });
        });
    const bool is_late = schedule_.loss == Loss::kUntilTooLate && point_ != std::nullopt &&
                         !(is_committed && have_all_stopped);
    if (result_->exit_code != kExitStoppedAtStep) {
      if (!is_late) return "the job failed: " + result_->message;
      const bool is_explained =
          result_->exit_code == 143 && result_->message.find("deadline") != std::string::npos;
      return is_explained ? "" : "not explained: " + result_->message;
    }
    if (found.size() != 1) return "agreed, with " + std::to_string(found.size()) + " steps";
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        if (rank.stopped_at != found.front()) return "a rank has not stopped at the step";
      }
    }
    return "";
  }
  const Schedule schedule_;
  int turn_ = 0;
  int deliveries_ = 0;
  std::optional<int> lost_turn_;
  std::optional<Point> point_;
  std::set<NodeId> knows_notice_;
};

class DrainLoss : public ::testing::TestWithParam<Loss> {};

TEST_P(DrainLoss, AtEachPointAllRanksStopAtOneStepOrTheReasonIsReported) {
  std::array<int, kPoints> losses{};
  for (const std::size_t nodes : {1, 2, 3}) {
    if (nodes == 1 && GetParam() == Loss::kHost) continue;
    for (const bool is_lockstep : {true, false}) {
      Schedule schedule{.nodes = nodes, .is_lockstep = is_lockstep, .loss = GetParam()};
      LossWorld unbroken(schedule);
      ASSERT_EQ(unbroken.run(), "");
      for (int point = 1; point <= unbroken.deliveries(); ++point) {
        schedule.lost_after = point;
        for (schedule.received = 0; schedule.received < 1U << nodes; ++schedule.received) {
          LossWorld world(schedule);
          ASSERT_EQ(world.run(), "")
              << nodes << " nodes, lockstep " << is_lockstep << ", lost after delivery " << point
              << " of " << unbroken.deliveries() << ", received by " << schedule.received;
          if (world.point()) ++losses[static_cast<std::size_t>(*world.point())];
        }
      }
    }
  }
  for (std::size_t i = 0; i < kPoints; ++i) EXPECT_GT(losses[i], 0) << "point " << i;
}

INSTANTIATE_TEST_SUITE_P(Losses, DrainLoss,
                         ::testing::Values(Loss::kProcess, Loss::kHost, Loss::kUntilTooLate));

}  // namespace
}  // namespace elastic::core
