#include "core/rendezvous/rank_assign.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace elastic::core {
namespace {

TEST(RankAssign, NoNodesGiveNoRanks) { EXPECT_TRUE(assign_ranks({}).empty()); }

TEST(RankAssign, RolesInterleaveByNodeRank) {
  const auto nodes = assign_ranks({{1, "a"}, {1, "b"}, {2, "a"}});
  const std::vector<NodeRanks> expected = {{0, 4, 0, 3}, {1, 4, 0, 1}, {2, 4, 1, 3}};
  EXPECT_EQ(nodes, expected);
}

// Checks the invariants for one list of members: ranks are dense and unique, over all workers and
// within each role; they rise with the node rank; and every node receives the same sums.
void check_laws(const std::vector<NodeMember>& members) {
  const auto nodes = assign_ranks(members);
  ASSERT_EQ(nodes.size(), members.size());
  std::vector<int> ranks;
  std::map<std::string, std::vector<int>> role_ranks;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto workers = worker_assignments(nodes[i], members[i].local_world_size);
    ASSERT_EQ(workers.size(), static_cast<std::size_t>(members[i].local_world_size));
    for (std::size_t local_rank = 0; local_rank < workers.size(); ++local_rank) {
      EXPECT_EQ(workers[local_rank].local_rank, static_cast<int>(local_rank));
      ranks.push_back(workers[local_rank].rank);
      role_ranks[members[i].role].push_back(workers[local_rank].role_rank);
    }
  }
  const auto is_count_up = [](const std::vector<int>& values) {
    std::vector<int> expected(values.size());
    std::iota(expected.begin(), expected.end(), 0);
    return values == expected;
  };
  EXPECT_TRUE(is_count_up(ranks));
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto& of_role = role_ranks[members[i].role];
    EXPECT_TRUE(is_count_up(of_role));
    EXPECT_EQ(nodes[i].world_size, static_cast<int>(ranks.size()));
    EXPECT_EQ(nodes[i].role_world_size, static_cast<int>(of_role.size()));
  }
}

TEST(RankAssign, LawsHoldForEverySmallJob) {
  const std::vector<NodeMember> kinds = {{1, "a"}, {2, "a"}, {3, "a"},
                                         {1, "b"}, {2, "b"}, {3, "b"}};
  std::vector<std::vector<NodeMember>> jobs = {{}};
  for (std::size_t first = 0; first < jobs.size() && jobs[first].size() < 4; ++first) {
    for (const NodeMember& kind : kinds) {
      std::vector<NodeMember> job = jobs[first];
      job.push_back(kind);
      jobs.push_back(std::move(job));
    }
  }
  for (const auto& job : jobs) {
    check_laws(job);
    if (HasFailure()) FAIL() << "a job of " << job.size() << " nodes breaks a law";
  }
}

TEST(RankAssign, AgreesWithTheClosedFormWhenAllNodesAreAlike) {
  constexpr int kNodes = 1000;
  constexpr int kLocal = 8;
  const auto nodes = assign_ranks(std::vector<NodeMember>(kNodes, {kLocal, "default"}));
  for (int i = 0; i < kNodes; ++i) {
    const NodeRanks expected{i * kLocal, kNodes * kLocal, i * kLocal, kNodes * kLocal};
    ASSERT_EQ(nodes[static_cast<std::size_t>(i)], expected);
  }
}

TEST(RankAssign, AssignsRanksToWorkers) {
  RoundRecord record;
  record.round = 3;
  record.generation = 2;
  record.nodes = 2;
  record.world_size = 5;
  record.master_addr = "10.0.0.1";
  record.master_port = 1234;
  record.restarts = 1;
  record.membership_changes = 4;
  const RoundInfo info = round_info(record, {.group_rank = 1,
                                             .local_world_size = 2,
                                             .base_rank = 3,
                                             .base_role_rank = 0,
                                             .role_world_size = 2});
  EXPECT_EQ(info.round, 3u);
  EXPECT_EQ(info.generation, 2u);
  EXPECT_EQ(info.restart_count, 1);
  EXPECT_EQ(info.membership_changes, 4);
  EXPECT_EQ(info.group_rank, 1);
  EXPECT_EQ(info.group_world_size, 2);
  EXPECT_EQ(info.master_addr, "10.0.0.1");
  EXPECT_EQ(info.master_port, 1234);
  ASSERT_EQ(info.workers.size(), 2u);
  EXPECT_EQ(info.workers[1].local_rank, 1);
  EXPECT_EQ(info.workers[1].rank, 4);
  EXPECT_EQ(info.workers[1].role_rank, 1);
  EXPECT_EQ(info.workers[1].world_size, 5);
  EXPECT_EQ(info.workers[1].role_world_size, 2);
}

}  // namespace
}  // namespace elastic::core
