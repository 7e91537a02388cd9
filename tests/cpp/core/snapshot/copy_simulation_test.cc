// Nodes that save, copy, are lost and join in random order. A round never continues from two steps,
// nor from one that a rank cannot get, and one lost node never costs a step that was copied. In
// half of the jobs the state is replicated: their size changes, and they continue from the newest
// step of all ranks that are left.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/snapshot/copy_plan.h"
#include "core/snapshot/snapshot_plan.h"

namespace elastic::snapshot {
namespace {

constexpr int kRanksPerNode = 2;

// The state of a rank: where its training has come from, so that two of one step can differ.
struct Simulated {
  SavedStep saved;
  std::string history;
};

struct SimulatedNode {
  NodeId id;
  std::string host;
  std::map<int, std::vector<Simulated>> slots;              // by rank; at most three
  std::map<std::pair<int, SavedStep>, std::string> copies;  // of other nodes
  std::optional<CopyOrder> order;
  std::vector<CopyOrder> inbox;
  std::map<int, SavedStep> held;  // by rank: the first one behind the step of the order
  std::set<int> put;              // ranks whose target the buddy has
  std::set<SavedStep> copied;
  std::set<std::int64_t> refused;
  std::optional<std::pair<int, Simulated>> shared;  // of this rank; until all have a newer one
};

class CopySimulation {
 public:
  explicit CopySimulation(unsigned seed)
      : is_replicated_(seed % 2 == 1), random_(seed), nodes_(2 + chance(4)) {
    for (SimulatedNode& node : nodes_) enter(&node);
    begin_round(-1, "");
  }

  void run() {
    for (int i = 0; i < 800 && !::testing::Test::HasFatalFailure(); ++i) {
      switch (chance(12)) {
        case 0:
        case 1:
        case 2:
        case 3: save(); break;
        case 4:
        case 5: report(); break;
        case 6:
        case 7: receive(); break;
        case 8:
        case 9:
        case 10: transfer(); break;
        default:
          if (chance(6) == 0) end_round();
      }
    }
  }
  int continued() const { return continued_; }
  int continued_with_another_size() const { return resized_; }

 private:
  std::size_t chance(std::size_t of) { return random_() % of; }
  int world() const { return static_cast<int>(nodes_.size()) * kRanksPerNode; }
  SimulatedNode& owner(int rank) { return nodes_[static_cast<std::size_t>(rank / kRanksPerNode)]; }

  void enter(SimulatedNode* node) {
    *node = {};
    node->id = {1, ++last_id_};
    node->host = std::to_string(last_id_);
  }

  // A rank is never two steps ahead of another one.
  void save() {
    const int rank = static_cast<int>(chance(static_cast<std::size_t>(world())));
    if (steps_[rank] > *std::min_element(steps_.begin(), steps_.end())) return;
    SimulatedNode& node = owner(rank);
    ++steps_[rank];
    std::vector<Simulated>& slots = node.slots[rank];
    const Simulated saved{{steps_[rank], round_}, history_};
    const std::int64_t hold = node.order ? node.order->hold : -1;
    if (hold >= 0 && saved.saved.step >= hold) node.held.emplace(rank, saved.saved);
    const auto is_pinned = [&](const Simulated& one) {
      const auto held = node.held.find(rank);
      return (held != node.held.end() && held->second == one.saved) ||
             (node.order && (one.saved == node.order->step || one.saved == node.order->base));
    };
    auto oldest = std::find_if(slots.begin(), slots.end(),
                               [&](const Simulated& one) { return !is_pinned(one); });
    const bool is_only_newest = oldest != slots.end() && oldest + 1 == slots.end();
    if (slots.size() < 2 || (slots.size() < 3 && (oldest == slots.end() || is_only_newest))) {
      slots.push_back(saved);
    } else if (oldest != slots.end()) {
      slots.erase(oldest);
      slots.push_back(saved);
    }
    const auto first = static_cast<int>(&node - nodes_.data()) * kRanksPerNode;
    bool is_shared = node.shared.has_value();
    for (int i = first; is_shared && i < first + kRanksPerNode; ++i) {
      const std::vector<Simulated>& of = node.slots[i];
      is_shared = !of.empty() && of.back().saved.step > node.shared->second.saved.step;
    }
    if (is_shared) node.shared.reset();
  }

  std::vector<SavedStep> own_steps(std::size_t index) {
    std::map<SavedStep, int> counts;
    for (int i = 0; i < kRanksPerNode; ++i) {
      const int rank = static_cast<int>(index) * kRanksPerNode + i;
      for (const Simulated& one : nodes_[index].slots[rank]) ++counts[one.saved];
    }
    std::vector<SavedStep> steps;
    for (const auto& [step, count] : counts) {
      if (count == kRanksPerNode) steps.push_back(step);
    }
    return steps;
  }

  void report() {
    const std::size_t index = chance(nodes_.size());
    const SimulatedNode& node = nodes_[index];
    CopyReport report{.round = round_,
                      .group_rank = static_cast<std::int32_t>(index),
                      .address = node.host,
                      .host = node.host,
                      .domain = std::to_string(index % 2),
                      .own = own_steps(index),
                      .copied = {node.copied.begin(), node.copied.end()}};
    if (node.order) report.target = node.order->step;
    CopyPlan::Out orders;
    plan_.step(Copied{node.id, report, round_, nodes_.size()}, {}, &orders);
    for (auto& [to, order] : orders) {
      if (chance(10) == 0) continue;  // lost with its connection
      for (SimulatedNode& one : nodes_) {
        if (one.id == to) one.inbox.push_back(order);
      }
    }
    if (chance(40) > 0) return;
    plan_ = {};  // another coordinator, which has its own connections
    for (SimulatedNode& one : nodes_) one.inbox.clear();
  }

  void receive() {
    SimulatedNode& node = nodes_[chance(nodes_.size())];
    if (node.inbox.empty()) return;
    if (!node.order || node.order->hold != node.inbox.front().hold) node.held.clear();
    node.order = node.inbox.front();
    node.inbox.erase(node.inbox.begin());
    node.put.clear();
    const auto is_wanted = [&](const SavedStep& one) {
      return one >= node.order->step || one == node.order->base;
    };
    std::erase_if(node.copied, [&](const SavedStep& one) { return !is_wanted(one); });
    std::erase_if(node.copies, [&](const auto& one) { return !is_wanted(one.first.second); });
  }

  void transfer() {
    const std::size_t index = chance(nodes_.size());
    SimulatedNode& node = nodes_[index];
    if (!node.order) return;
    const auto buddy = std::find_if(nodes_.begin(), nodes_.end(), [&](const SimulatedNode& one) {
      return one.host == node.order->buddy.address;
    });
    ASSERT_NE(buddy, nodes_.end()) << "the buddy of a round is a node of it";
    ASSERT_NE(buddy->id, node.id);
    if (chance(10) == 0) return node.put.clear();  // the connection broke
    for (int i = 0; i < kRanksPerNode; ++i) {
      const int rank = static_cast<int>(index) * kRanksPerNode + i;
      if (node.put.contains(rank)) continue;
      for (const Simulated& one : node.slots[rank]) {
        if (one.saved != node.order->step) continue;
        buddy->copies[{rank, one.saved}] = one.history;
        node.put.insert(rank);
      }
      break;
    }
    if (node.put.size() == kRanksPerNode) node.copied.insert(node.order->step);
  }

  // What a node joins with: its snapshots, and what it sends to others.
  std::vector<HeldState> held_by(const SimulatedNode& node) const {
    std::vector<HeldState> held;
    const auto add = [&](int rank, const SavedStep& saved, bool is_copy) {
      held.push_back({.rank = rank,
                      .world_size = worlds_.at(saved.round),
                      .step = saved.step,
                      .round = saved.round,
                      .is_copy = is_copy,
                      .is_replicated = is_replicated_});
    };
    if (node.shared) add(node.shared->first, node.shared->second.saved, false);
    for (const auto& [rank, slots] : node.slots) {
      for (const Simulated& one : slots) {
        add(rank, one.saved, false);
        const bool is_pinned =
            node.order && (one.saved == node.order->step || one.saved == node.order->base);
        if (is_pinned) add(rank, one.saved, true);
      }
    }
    for (const auto& [key, history] : node.copies) add(key.first, key.second, true);
    for (const std::int64_t step : node.refused) held.push_back({-1, world(), step});
    return held;
  }

  // A worker has failed, or nodes are lost and others follow, perhaps with other ranks.
  void end_round() {
    const std::size_t lost = std::min(chance(4), nodes_.size() - 1);
    const std::int64_t copied = plan_.copied().step;
    for (std::size_t i = 0; i < lost; ++i) enter(&nodes_[(chance(nodes_.size()))]);
    if (chance(4) == 0) std::shuffle(nodes_.begin(), nodes_.end(), random_);
    const std::size_t before = nodes_.size();
    if (is_replicated_ && chance(3) == 0 && nodes_.size() > 1) {
      nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(chance(nodes_.size())));
    } else if (is_replicated_ && chance(3) == 0 && nodes_.size() < 6) {
      enter(&nodes_.emplace_back());
    }
    bool has_refused = false;
    for (int attempt = 0;; ++attempt) {
      ASSERT_LT(attempt, 20);
      std::vector<std::vector<HeldState>> held;
      for (const SimulatedNode& node : nodes_) held.push_back(held_by(node));
      std::vector<NodeHoldings> holdings;
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        holdings.push_back(
            {static_cast<int>(i) * kRanksPerNode, kRanksPerNode, &held[i], &nodes_[i].host});
      }
      const ResumePoint point = plan_resume(holdings, world());
      const std::int64_t step = point.step;
      if (is_replicated_ && !has_refused) {
        std::int64_t newest = -1;
        for (const std::vector<HeldState>& one : held) {
          for (const HeldState& state : one) newest = std::max(newest, state.step);
        }
        ASSERT_EQ(step, newest) << "the newest state that is left";
      }
      if (lost <= 1 && !has_refused && copied >= 0 && nodes_.size() >= before) {
        ASSERT_GE(step, copied) << "a step that was copied is lost with one node";
      }
      if (step < 0) return begin_round(-1, "");
      // Each rank gets its state, and all are of one training.
      std::vector<std::vector<HeldSource>> sources;
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        sources.push_back(plan_sources(holdings, world(), point, i));
      }
      std::map<int, std::string> histories;
      std::optional<SavedStep> saved;
      for (int rank = 0; rank < world(); ++rank) {
        if (point.kind == ResumeKind::kReplicated) {
          ASSERT_NO_FATAL_FAILURE(share(rank, point, sources, &saved, &histories));
        } else {
          ASSERT_NO_FATAL_FAILURE(get(rank, step, sources, &saved, &histories));
        }
      }
      std::set<std::string> different;
      for (const auto& [rank, history] : histories) different.insert(history);
      ASSERT_EQ(different.size(), 1U) << "two trainings in one round";
      const std::size_t unlucky = chance(nodes_.size());
      if (chance(10) == 0 && !sources[unlucky].empty() &&
          !sources[unlucky].front().address.empty()) {
        nodes_[unlucky].refused.insert(step);
        has_refused = true;
        continue;
      }
      if (point.kind == ResumeKind::kReplicated) {
        install_shared(*saved, *different.begin(), sources);
        if (nodes_.size() != before) ++resized_;
      } else {
        install(*saved, histories);
      }
      ++continued_;
      return begin_round(step, *different.begin());
    }
  }

  void get(int rank, std::int64_t step, const std::vector<std::vector<HeldSource>>& sources,
           std::optional<SavedStep>* saved, std::map<int, std::string>* histories) {
    SimulatedNode& node = owner(rank);
    const auto index = static_cast<std::size_t>(rank / kRanksPerNode);
    const auto source = std::find_if(sources[index].begin(), sources[index].end(),
                                     [&](const HeldSource& one) { return one.rank == rank; });
    const SimulatedNode* from = &node;
    if (source != sources[index].end()) {
      const auto found = std::find_if(nodes_.begin(), nodes_.end(), [&](const SimulatedNode& one) {
        return one.host == source->address;
      });
      ASSERT_NE(found, nodes_.end());
      from = &*found;
    }
    for (const auto& [held, slots] : from->slots) {
      for (const Simulated& one : slots) {
        const bool is_it = held == rank && one.saved.step == step &&
                           (source == sources[index].end() || one.saved.round == source->round);
        if (is_it && (!*saved || **saved == one.saved)) {
          *saved = one.saved;
          (*histories)[rank] = one.history;
        }
      }
    }
    if (histories->contains(rank)) return;
    for (const auto& [key, history] : from->copies) {
      if (key.first != rank || key.second.step != step) continue;
      if (source != sources[index].end() && key.second.round != source->round) continue;
      *saved = key.second;
      (*histories)[rank] = history;
    }
    ASSERT_TRUE(histories->contains(rank)) << "rank " << rank << " cannot get step " << step;
  }

  // Its own, or that which its node holds or gets for all of its ranks.
  void share(int rank, const ResumePoint& point,
             const std::vector<std::vector<HeldSource>>& sources, std::optional<SavedStep>* saved,
             std::map<int, std::string>* histories) {
    const SavedStep save{point.step, static_cast<std::uint32_t>(point.round)};
    *saved = save;
    SimulatedNode& node = owner(rank);
    if (worlds_.at(save.round) == world()) {
      for (const Simulated& one : node.slots[rank]) {
        if (one.saved == save) (*histories)[rank] = one.history;
      }
    }
    if (histories->contains(rank)) return;
    const auto& list = sources[static_cast<std::size_t>(rank / kRanksPerNode)];
    ASSERT_EQ(list.size(), 1U);
    ASSERT_TRUE(list[0].is_shared);
    for (const SimulatedNode& from : nodes_) {
      if (list[0].address.empty() ? &from != &node : from.host != list[0].address) continue;
      const auto slots = from.slots.find(list[0].rank);
      if (slots != from.slots.end()) {
        for (const Simulated& one : slots->second) {
          if (one.saved == save) (*histories)[rank] = one.history;
        }
      }
      const auto copy = from.copies.find({list[0].rank, save});
      if (copy != from.copies.end()) (*histories)[rank] = copy->second;
      const bool is_shared =
          from.shared && from.shared->second.saved == save && from.shared->first == list[0].rank;
      if (is_shared) (*histories)[rank] = from.shared->second.history;
    }
    ASSERT_TRUE(histories->contains(rank)) << "rank " << rank << " gets no step " << save.step;
  }

  // What the guardians keep.
  void install_shared(const SavedStep& saved, const std::string& history,
                      const std::vector<std::vector<HeldSource>>& sources) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      SimulatedNode& node = nodes_[i];
      std::map<int, std::vector<Simulated>> slots;
      const bool has_source = !sources[i].empty();
      for (int j = 0; j < kRanksPerNode; ++j) {
        const int rank = static_cast<int>(i) * kRanksPerNode + j;
        for (const Simulated& one : node.slots[rank]) {
          const bool is_shared = has_source && sources[i][0].rank == rank && one.saved == saved;
          const bool is_kept = one.saved.step < saved.step || one.saved == saved;
          if (is_kept && !is_shared && worlds_.at(one.saved.round) == world()) {
            slots[rank].push_back(one);
          }
        }
      }
      node.slots = std::move(slots);
      node.shared.reset();
      if (has_source) node.shared = {sources[i][0].rank, {saved, history}};
    }
    const auto size = world();
    for (SimulatedNode& node : nodes_) {
      std::erase_if(node.copies, [&](const auto& one) {
        return worlds_.at(one.first.second.round) != size && one.first.second != saved;
      });
    }
  }

  void install(const SavedStep& saved, const std::map<int, std::string>& histories) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      std::map<int, std::vector<Simulated>> slots;
      for (int j = 0; j < kRanksPerNode; ++j) {
        const int rank = static_cast<int>(i) * kRanksPerNode + j;
        for (const Simulated& one : nodes_[i].slots[rank]) {
          if (one.saved.step < saved.step) slots[rank].push_back(one);
        }
        slots[rank].push_back({saved, histories.at(rank)});
        if (slots[rank].size() > 3) slots[rank].erase(slots[rank].begin());
      }
      nodes_[i].slots = std::move(slots);
      nodes_[i].shared.reset();
    }
  }

  void begin_round(std::int64_t step, const std::string& history) {
    ++round_;
    worlds_[round_] = world();
    plan_.reset();
    history_ = history + "/" + std::to_string(round_) + "@" + std::to_string(step);
    steps_.assign(static_cast<std::size_t>(world()), std::max<std::int64_t>(step, 0));
    for (SimulatedNode& node : nodes_) {
      if (step < 0) {
        node.slots.clear();
        node.shared.reset();
      }
      std::erase_if(node.copies, [&](const auto& one) { return one.first.second.step > step; });
      node.order.reset();
      node.inbox.clear();
      node.put.clear();
      node.held.clear();
      node.copied.clear();
      node.refused.clear();
    }
  }

  const bool is_replicated_;
  std::mt19937 random_;
  std::map<std::uint32_t, int> worlds_;  // by round
  std::uint64_t last_id_ = 0;
  std::vector<SimulatedNode> nodes_;  // by node rank
  CopyPlan plan_;
  std::uint32_t round_ = 0;
  std::string history_;
  std::vector<std::int64_t> steps_;
  int continued_ = 0;
  int resized_ = 0;
};

TEST(CopySimulation, NoRoundContinuesFromTwoStepsOrOneThatARankCannotGet) {
  const char* const percent = std::getenv("ELASTIC_SIM_PERCENT");
  const int schedules = 100 * (percent == nullptr ? 100 : std::atoi(percent));
  int continued = 0;
  int resized = 0;
  for (int seed = 0; seed < schedules; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CopySimulation simulation(static_cast<unsigned>(seed));
    simulation.run();
    continued += simulation.continued();
    resized += simulation.continued_with_another_size();
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(continued, schedules) << "the schedules do not reach what they are about";
  EXPECT_GT(resized, schedules / 2) << "nor with another world size";
}

}  // namespace
}  // namespace elastic::snapshot
