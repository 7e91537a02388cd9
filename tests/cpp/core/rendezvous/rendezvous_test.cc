// What is too large for a scenario. The stories are in tests/data/scenarios/rendezvous.

#include <gtest/gtest.h>

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

// I8: only the ends of all ranks are a success.
TEST(Rendezvous, AMemberThatClosesTheJobCannotMakeItSucceed) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  JobResult result;
  result.outcome = JobOutcome::kSucceeded;
  job.step(rdzv::Close{job.id("a"), result});
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().outcome, JobOutcome::kClosed);
}

// Each departure would be a pass over all nodes that wait.
TEST(Rendezvous, ADepartureBeforeTheFirstRoundChecksTheOthersOnlyWhenItEndsTheirLastCall) {
  Job job(nnodes(2, 8));
  job.join_all({"a", "b", "c", "d"});
  job.pass_and_tick(1s);
  for (const char* name : {"d", "c"}) {
    job.leave(name);
    EXPECT_GT(job.machine().next_deadline(), job.now()) << name;
  }
  job.leave("b");
  EXPECT_EQ(job.machine().next_deadline(), job.now());
}

}  // namespace
}  // namespace elastic::test
