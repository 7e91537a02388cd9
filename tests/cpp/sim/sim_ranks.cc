#include "sim/sim_ranks.h"

#include <algorithm>
#include <utility>

#include "sim/sim_agent.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;
using core::drain_sim::Rank;
using core::drain_sim::SimNode;

constexpr Duration kPoll = 20ms;          // of a rank that waits for others
constexpr Duration kReportInterval = 1s;  // a heartbeat's

}  // namespace

SimRanks::SimRanks(SimAgent* agent, SimAgentWorld* world) : agent_(agent), world_(world) {
  add_nodes(1);
}

void SimRanks::begin(std::uint64_t round, int first_rank, int count, std::int64_t steps,
                     Duration step_time) {
  const std::uint64_t era = ++era_;
  step_time_ = step_time;
  round_ = round;
  SimNode& node = nodes_.front();
  node = {};
  node.ranks.resize(static_cast<std::size_t>(count));
  for (Rank& rank : node.ranks) rank.last_step = steps;
  begin_member(node, round, first_rank);
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    agent_->later(world_->dice().between(0s, step_time), [this, i, era] { access(i, era); });
  }
  report_steps(era);
}

void SimRanks::end() {
  halt();
  SimNode& node = nodes_.front();
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    node.ranks[i].has_exited = true;
    end_worker(node, i);
  }
}

std::int64_t SimRanks::tentative() const {
  std::int64_t step = core::drain_sim::kNoStep;
  for (const Rank& rank : nodes_.front().ranks) step = std::max(step, rank.tentative);
  return step;
}

void SimRanks::access(std::size_t index, std::uint64_t era) {
  if (era != era_) return;
  Rank& rank = nodes_.front().ranks[index];
  const bool is_first = rank.step == core::drain_sim::kNoStep;
  const bool is_computing = !rank.has_stored && rank.step < rank.last_step;
  if (is_computing && rank.step > world_->slowest_step(*agent_)) {
    agent_->later(kPoll, [this, index, era] { access(index, era); });
    return;
  }
  advance(rank, true);
  if (is_first && rank.has_stored) report();
  guard_soon();
  if (rank.has_exited) {
    if (slowest() == INT64_MAX) agent_->ranks_exited();
    return;
  }
  const bool is_waiting = rank.has_stored && rank.waits_at == rank.step;
  const Duration wait = is_waiting        ? kPoll
                        : rank.has_stored ? world_->dice().between(Duration(10us), Duration(1ms))
                                          : world_->dice().between(step_time_ / 2, step_time_);
  agent_->later(wait, [this, index, era] { access(index, era); });
}

void SimRanks::report_steps(std::uint64_t era) {
  agent_->later(kReportInterval, [this, era] {
    if (era != era_) return;
    report();
    report_steps(era);
  });
}

void SimRanks::report() {
  const drain::StopStepEvent steps = steps_of(nodes_.front());
  hang::NodeProgress progress;
  progress.round = round_;
  progress.reporting = static_cast<std::int32_t>(steps.reporting.size());
  progress.newest = steps.newest;
  progress.oldest = steps.oldest;
  if (progress.reporting > 0) agent_->report(progress);
}

void SimRanks::obey(const drain::Order& order) {
  SimNode& node = nodes_.front();
  node.orders.push_back(order);
  deliver_order(node);
  guard_soon();
}

void SimRanks::guard_soon() {
  if (std::exchange(is_turn_due_, true)) return;
  agent_->later(world_->dice().between(Duration(10us), Duration(1ms)), [this] { turn(); });
}

// The agent may end, and the node leave, with what is sent here.
void SimRanks::turn() {
  is_turn_due_ = false;
  SimNode& node = nodes_.front();
  guard(node);
  deliver_event(node);
  for (const drain::Reply& reply : std::exchange(node.replies, {})) {
    agent_->report(reply);
  }
  if (node.tentative || !node.requests.empty() || !node.events.empty()) guard_soon();
  if (const auto step = std::exchange(node.left_at, std::nullopt)) agent_->leave_at(*step);
}

}  // namespace elastic::test
