// Growth: the settle period, spares, the limit on membership changes, and flapping nodes.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "core/rendezvous/rendezvous_harness.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::test {
namespace {

using testing::HasSubstr;

// A job of 1:max nodes whose first round is on a and b.
class Growing : public Job {
 public:
  explicit Growing(JobSettings settings) : Job(std::move(settings)) {
    join_all({"a", "b"});
    run(settings_of().last_call_timeout + 1s, {"a", "b"});
    EXPECT_TRUE(is_running());
  }
  const JobSettings& settings_of() const { return settings(); }
};

// A replacement that joins must not stop ranks that save their state at the agreed step.
TEST(RendezvousGrowth, NoRoundIsRestartedForNewNodesWhileTheJobIsBeingStopped) {
  Growing job(nnodes(1, 8));
  job.join("c");
  EXPECT_NE(job.machine().waiting_nodes(), 0);
  const Sent sent = job.step(rdzv::HoldGrowth{});
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "c")->message,
              HasSubstr("the job is being stopped at an agreed step"));
  job.run(100s, {"a", "b", "c"});
  EXPECT_TRUE(job.is_running());
  core::RendezvousMachine restored(job.settings_of(), job.now(), {});
  ASSERT_TRUE(restored.load(job.machine().encode(), job.now()).ok());
  EXPECT_EQ(restored.waiting_nodes(), 0) << "also at a new coordinator";
  // A round that ends for another reason has them.
  job.leave("b");
  EXPECT_EQ(job.rejoin("a").count<rdzv::Round>(), 2);
}

// A member reports that the job is being stopped right after its resume.
TEST(RendezvousGrowth, ARoundThatWasTakenOverGrowsWhenItsMembersHaveReported) {
  const JobSettings settings = with(nnodes(1, 2), [](JobSettings& s) { s.settle = 0s; });
  for (const bool is_restored : {false, true}) {
    for (const bool is_held : {false, true}) {
      Job job(settings);
      job.join("a");
      job.run(settings.last_call_timeout + 1s, {"a"});
      ASSERT_TRUE(job.is_running());
      const std::string state = job.machine().encode();
      job.restart_coordinator();
      if (is_restored) job.restore_coordinator(state);
      job.join("b");
      EXPECT_EQ(job.resume("a", rdzv::NodePhase::kWorking).count<rdzv::Restart>(), 0);
      if (is_held) job.step(rdzv::HoldGrowth{});
      job.run(3s, {"a", "b"});
      EXPECT_EQ(job.is_running(), is_held) << "restored: " << is_restored;
    }
  }
}

TEST(RendezvousGrowth, NewNodesAreAdmittedAfterTheSettleTime) {
  Growing job(nnodes(1, 8));
  const Sent sent = job.join("c");
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "c")->message,
              HasSubstr("1 node more will be admitted"));
  EXPECT_EQ(job.machine().waiting_nodes(), 1);
  job.run(1900ms, {"a", "b", "c"});
  EXPECT_TRUE(job.is_running());
  job.run(200ms, {"a", "b", "c"});
  EXPECT_TRUE(job.is_forming());
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 3);
  EXPECT_EQ(job.rank("a"), 0);
  EXPECT_EQ(job.rank("b"), 1);
  EXPECT_EQ(job.rank("c"), 2);
  EXPECT_EQ(job.share("c").record->restarts, 0) << "growth is free";
  EXPECT_EQ(job.share("c").record->membership_changes, 1);
}

TEST(RendezvousGrowth, LateNodesWithinTheSettleTimeCostOneRestart) {
  Growing job(nnodes(1, 8));
  for (const char* name : {"c", "d", "e"}) {
    job.join(name);
    job.run(1500ms, {"a", "b", "c", "d", "e"});
    EXPECT_TRUE(job.is_running());
  }
  job.run(600ms, {"a", "b", "c", "d", "e"});
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 5);
  EXPECT_EQ(job.round(), 2u);
}

TEST(RendezvousGrowth, FurtherJoinsDelayGrowthByALimitedTime) {
  Growing job(nnodes(1, 100));
  int joined = 0;
  while (job.is_running() && joined < 60) {
    job.join("n" + std::to_string(joined++));
    job.run(1s, {"a", "b", "n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"});
  }
  EXPECT_LE(joined, 31);
}

TEST(RendezvousGrowth, WithoutSettleItGrowsAtOnce) {
  Growing job(with(nnodes(1, 3), [](JobSettings& s) { s.settle = 0s; }));
  const Sent sent = job.join("c");
  EXPECT_EQ(sent.count<rdzv::Restart>(), 2);
  EXPECT_EQ(job.action_to<rdzv::Restart>(sent, "a")->cause, rdzv::RestartCause::kGrowth);
}

TEST(RendezvousGrowth, GrowthIsImmediateAtMaxNodes) {
  Growing job(nnodes(1, 3));
  const Sent sent = job.join("c");
  EXPECT_EQ(sent.count<rdzv::Restart>(), 2);
}

TEST(RendezvousGrowth, NodeThatLeavesIsNotAdmitted) {
  Growing job(nnodes(1, 8));
  job.join("c");
  job.leave("c");
  job.run(10s, {"a", "b"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 1u);
}

TEST(RendezvousGrowth, TheLimitOnMembershipChangesStopsGrowthButNotLoss) {
  Growing job(with(nnodes(1, 4), [](JobSettings& s) {
    s.settle = 0s;
    s.max_membership_changes = 1;
  }));
  job.join("c");
  job.rejoin_all({"a", "b"});
  ASSERT_EQ(job.share("a").record->membership_changes, 1);
  const Sent sent = job.join("d");
  EXPECT_EQ(sent.count<rdzv::Restart>(), 0);
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "d")->message, HasSubstr("all that is allowed"));
  EXPECT_EQ(job.machine().spare_nodes(), 1);
  job.leave("c");
  EXPECT_EQ(job.rejoin_all({"a", "b"}).count<rdzv::Round>(), 3) << "a spare replaces the lost node";
}

TEST(RendezvousGrowth, GrowthBacksOffForAFlappingNode) {
  Growing job(nnodes(1, 8));
  Duration waited[3];
  for (int flap = 0; flap < 3; ++flap) {
    const std::string name = "flapper" + std::to_string(flap);
    job.join(name);
    const Instant joined = job.now();
    const std::string why = "joins are delayed, since each of the last 2 rounds lost a node";
    EXPECT_EQ(job.machine().describe(joined).find(why) != std::string::npos, flap == 2);
    while (job.is_running()) job.run(100ms, {"a", "b", name});
    waited[flap] = job.now() - joined;
    job.rejoin_all({"a", "b"});
    ASSERT_TRUE(job.is_running());
    job.run(1s, {"a", "b", name});
    job.leave(name);
    job.rejoin_all({"a", "b"});
  }
  EXPECT_LE(waited[0], 2200ms);
  EXPECT_LE(waited[1], 2200ms) << "the first time is forgiven";
  EXPECT_GE(waited[2], 3900ms);
}

TEST(RendezvousGrowth, SparesReplaceLostNodesInJoinOrder) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.join("z_first");
  job.join("c_second");
  job.leave("b");
  EXPECT_EQ(job.rejoin("a").count<rdzv::Round>(), 2);
  EXPECT_EQ(job.rank("z_first"), 1);
  EXPECT_EQ(job.machine().spare_nodes(), 1);
}

TEST(RendezvousGrowth, RejoiningMembersPrecedeSpares) {
  Job job(with(nnodes(2, 2), [](JobSettings& s) { s.max_restarts = 1; }));
  job.join_all({"b", "c"});
  job.join("a_spare");
  job.fail("b");
  const Sent sent = job.rejoin_all({"b", "c"});
  EXPECT_EQ(sent.count<rdzv::Round>(), 2);
  EXPECT_NE(job.action_to<rdzv::Waiting>(sent, "a_spare"), nullptr);
  EXPECT_EQ(job.rank("b"), 0);
}

TEST(RendezvousGrowth, LostSpareDoesNotRestartTheRound) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.join("spare");
  job.cut("spare");
  const Sent sent = job.pass_and_tick(50ms);
  EXPECT_EQ(sent.count<rdzv::Restart>(), 0);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.machine().spare_nodes(), 0);
}

TEST(RendezvousGrowth, ANewcomerDuringTheRestartIsAdmittedWithIt) {
  Job job(with(nnodes(1, 3), [](JobSettings& s) { s.max_restarts = 1; }));
  job.join_all({"a", "b", "x"});
  job.leave("x");
  job.gone("a");
  EXPECT_NE(job.action_to<rdzv::Waiting>(job.join("c"), "c"), nullptr);
  job.join("a");
  EXPECT_EQ(job.rejoin("b").count<rdzv::Round>(), 3);
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
