// What is too large, or too often repeated, for a scenario: limits, and the ranks of every order
// and subset of nodes. The stories are in tests/data/scenarios/rendezvous.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

TEST(Rendezvous, AllMembersHoldTheDigestOfOneMemberList) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  const std::uint64_t digest = job.share("a").record->members_digest;
  EXPECT_EQ(digest, job.share("b").record->members_digest);
  Job other(nnodes(2, 2));
  other.node("b").local_world_size = 2;
  other.join_all({"a", "b"});
  EXPECT_NE(digest, other.share("b").record->members_digest);
}

TEST(Rendezvous, TheNumberOfSparesHasALimit) {
  JobSettings settings = nnodes(1, 1);
  core::RendezvousMachine machine(settings, Instant(0s), 0s);
  std::vector<core::RendezvousAction> actions;
  core::NodeInfo info;
  for (std::uint64_t i = 0; i < 1 + 4096; ++i) {
    info.id = {1, i};
    machine.step(rdzv::Join{info, settings}, Instant(0s), &actions);
  }
  EXPECT_EQ(machine.spare_nodes(), 4096);
  actions.clear();
  info.id = {2, 0};
  machine.step(rdzv::Join{info, settings}, Instant(0s), &actions);
  ASSERT_EQ(actions.size(), 1u);
  const auto* refused = std::get_if<rdzv::Refused>(&actions[0]);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->error.code(), StatusCode::kResourceExhausted);
}

// I8: a lost node cannot decide for the job, also if many others were lost after it.
TEST(Rendezvous, ALostNodeIsRememberedInALargeJob) {
  constexpr int kNodes = 100;
  Job job(with(nnodes(1, kNodes), [](JobSettings& s) { s.max_restarts = 9; }));
  std::vector<std::string> names;
  for (int i = 0; i < kNodes; ++i) names.push_back("n" + std::to_string(i));
  job.join_all(names);
  ASSERT_TRUE(job.is_running());
  for (int i = 0; i + 1 < kNodes; ++i) job.cut(names[static_cast<std::size_t>(i)]);
  job.pass_and_tick(1s);
  JobResult result;
  result.outcome = JobOutcome::kFailed;
  job.step(rdzv::Close{job.id("n0"), result});
  EXPECT_FALSE(job.is_closed());
}

using Ranks = std::map<std::string, int>;

Ranks ranks_of(Job* job, const std::vector<std::string>& names) {
  Ranks ranks;
  for (const std::string& name : names) ranks[name] = job->rank(name);
  return ranks;
}

TEST(RendezvousRanks, AreTheSameInEveryOrderOfJoining) {
  for (int size = 1; size <= 6; ++size) {
    std::vector<std::string> names;
    for (int i = 0; i < size; ++i) names.push_back("node" + std::to_string(i * 3 + 1));
    const std::vector<std::string> sorted = names;  // node1, node4, node7, node10, …
    std::sort(names.begin(), names.end());
    do {
      Job job(nnodes(size, size));
      job.join_all(names);
      for (int rank = 0; rank < size; ++rank) {
        ASSERT_EQ(job.rank(sorted[static_cast<std::size_t>(rank)]), rank);
      }
    } while (std::next_permutation(names.begin(), names.end()));
  }
}

// Every subset of a job's five nodes leaves, in every order; the others join again, in every
// rotation, with as many new nodes: the remaining nodes keep their ranks, and the new ones get the
// free ranks in order.
TEST(RendezvousRanks, AreKeptWhicheverNodesLeave) {
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  for (unsigned leaving = 1; leaving < 31; ++leaving) {
    std::vector<std::string> leavers;
    std::vector<std::string> others;
    for (std::size_t i = 0; i < names.size(); ++i) {
      ((leaving >> i) & 1 ? leavers : others).push_back(names[i]);
    }
    std::sort(leavers.begin(), leavers.end());
    do {
      for (std::size_t turn = 0; turn < others.size(); ++turn) {
        Job job(with(nnodes(5, 5), [](JobSettings& s) { s.max_restarts = 1; }));
        job.join_all(names);
        const Ranks before = ranks_of(&job, names);
        for (const std::string& name : leavers) job.leave(name);
        std::rotate(others.begin(), others.begin() + 1, others.end());
        job.rejoin_all(others);
        // Nodes that left join as new incarnations, the last to leave first.
        std::vector<std::string> newcomers;
        for (auto it = leavers.rbegin(); it != leavers.rend(); ++it) {
          newcomers.push_back(*it + "2");
        }
        job.join_all(newcomers);
        ASSERT_EQ(job.round(), 2u);
        Ranks expected;
        for (const std::string& name : others) expected[name] = before.at(name);
        for (const std::string& name : leavers) expected[name + "2"] = before.at(name);
        std::vector<std::string> all = others;
        all.insert(all.end(), newcomers.begin(), newcomers.end());
        ASSERT_EQ(ranks_of(&job, all), expected);
      }
    } while (std::next_permutation(leavers.begin(), leavers.end()));
  }
}

}  // namespace
}  // namespace elastic::test
