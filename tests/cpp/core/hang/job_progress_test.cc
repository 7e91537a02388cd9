#include "core/hang/hang_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace elastic::core {
namespace {

using std::chrono::seconds;

constexpr int kNodes = 6;

// What the class is to answer, by a visit of every node.
struct Model {
  struct Node {
    hang::NodeProgress progress;
    Instant progressed;
    Instant slowest;
    bool has_replied = false;
  };
  std::map<NodeId, Node> nodes;

  std::optional<Instant> last_progress() const {
    std::optional<Instant> last;
    for (const auto& [id, node] : nodes) {
      if (node.progress.reporting > 0) last = std::max(last.value_or(Instant{}), node.progressed);
    }
    return last;
  }
  Duration given_limit() const {
    Duration least{};
    for (const auto& [id, node] : nodes) {
      const Duration limit = node.progress.limit;
      if (limit > Duration{} && (least == Duration{} || limit < least)) least = limit;
    }
    return least;
  }
  Duration section_limit() const {
    Duration most{};
    for (const auto& [id, node] : nodes) most = std::max(most, node.progress.section_limit);
    return most;
  }
  std::vector<std::int32_t> lagging(Instant threshold) const {
    std::vector<std::int32_t> ranks;
    for (const auto& [id, node] : nodes) {
      const bool has_rank = node.progress.reporting > 0 && node.progress.slowest_rank >= 0;
      if (has_rank && node.slowest <= threshold) ranks.push_back(node.progress.slowest_rank);
    }
    return ranks;
  }
  bool all_have_replied() const {
    return std::all_of(nodes.begin(), nodes.end(),
                       [](const auto& one) { return one.second.has_replied; });
  }
};

TEST(JobProgress, AnswersAsAVisitOfEveryNodeWould) {
  std::mt19937 random(1);
  const auto any = [&](int below) { return static_cast<int>(random() % unsigned(below)); };
  JobProgress job;
  Model model;
  for (int i = 0; i < 20'000; ++i) {
    const NodeId id{1, static_cast<std::uint64_t>(any(kNodes))};
    switch (const int what = any(20)) {
      case 0:
        job.remove(id);
        model.nodes.erase(id);
        break;
      case 1:
        job.shift(seconds(1));
        for (auto& [other, node] : model.nodes) {
          node.progressed += seconds(1);
          node.slowest += seconds(1);
        }
        break;
      case 2:
        job.forget_replies();
        for (auto& [other, node] : model.nodes) node.has_replied = false;
        break;
      default: {
        job.add(id);
        Model::Node& node = model.nodes[id];
        if (what < 6) {
          job.note_reply(id);
          node.has_replied = true;
          break;
        }
        node.progress.reporting = any(3);
        node.progress.slowest_rank = any(8) - 1;
        node.progress.limit = seconds(any(4));
        node.progress.section_limit = seconds(any(4));
        node.progressed = Instant(seconds(100 + any(20)));
        node.slowest = Instant(seconds(90 + any(20)));
        job.update(id, node.progress, node.progressed, node.slowest);
      }
    }
    const Instant threshold(seconds(90 + any(20)));
    std::set<const JobProgress::Node*> lagged;
    for (const JobProgress::Node* node : job.lagging()) lagged.insert(node);
    for (const JobProgress::Node* node : job.divide(threshold)) {
      ASSERT_TRUE(lagged.insert(node).second) << "it lagged before";
      ASSERT_EQ(node->straggler, node->progress.slowest_rank);
    }
    std::vector<std::int32_t> ranks;
    for (const JobProgress::Node* node : job.lagging()) {
      ranks.push_back(node->progress.slowest_rank);
      ASSERT_GE(node->straggler, 0);
    }
    ASSERT_EQ(ranks, model.lagging(threshold));
    ASSERT_EQ(job.num_lagging(), ranks.size());
    for (const auto& [other, node] : job.nodes()) {
      ASSERT_EQ(node.straggler >= 0,
                std::count(ranks.begin(), ranks.end(), node.progress.slowest_rank) > 0 &&
                    node.progress.reporting > 0 && node.slowest_progressed <= threshold);
    }
    ASSERT_EQ(job.last_progress(), model.last_progress());
    ASSERT_EQ(job.given_limit(), model.given_limit());
    ASSERT_EQ(job.section_limit(), model.section_limit());
    ASSERT_EQ(job.all_have_replied(), model.all_have_replied());
  }
}

}  // namespace
}  // namespace elastic::core
