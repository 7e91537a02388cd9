#include "core/workers/worker_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/rendezvous/rank_assign.h"

namespace elastic::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

TEST(WorkerEnv, HoldsEveryRankVariableOfAHeterogeneousRound) {
  const auto nodes = assign_ranks({{1, "a"}, {1, "b"}, {2, "a"}});
  RoundInfo round;
  round.round = 7;
  round.restart_count = 2;
  round.group_rank = 2;
  round.group_world_size = 3;
  round.master_addr = "10.0.0.1";
  round.master_port = 29500;
  round.workers = worker_assignments(nodes[2], 2);
  const JobConstants job{.run_id = "job/1", .role = "a", .max_restarts = 3};
  EXPECT_THAT(
      rank_variables(job, round, 1, "/logs/1/error.json"),
      UnorderedElementsAre(
          "LOCAL_RANK=1", "RANK=3", "GROUP_RANK=2", "ROLE_RANK=2", "ROLE_NAME=a",
          "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=4", "GROUP_WORLD_SIZE=3", "ROLE_WORLD_SIZE=3",
          "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500", "TORCHELASTIC_RESTART_COUNT=2",
          "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_RUN_ID=job/1",
          "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_ERROR_FILE=/logs/1/error.json",
          "ELASTIC_ROUND=6", "ELASTIC_ON_MEMBERSHIP_CHANGE=restart", "ELASTIC_AWAITS_ROUND=0",
          "ELASTIC_MEMBERSHIP_CHANGE=", "ELASTIC_RESTART_CAUSE=", "ELASTIC_SAME_FAILURES=0"));
  round.cause = RoundCause{.why = {.cause = StopCause::kWorkerFailed,
                                   .rank = 3,
                                   .node = "n1",
                                   .exit_code = 7,
                                   .failure_class = FailureClass::kUserInput,
                                   .text = "rank 3 on n1 exited\nwith code 7"},
                           .same_failures = 2};
  EXPECT_THAT(rank_variables(job, round, 1, ""),
              IsSupersetOf({"ELASTIC_RESTART_CAUSE=worker-failed; rank=3; node=n1; exit_code=7; "
                            "class=user input; reason=rank 3 on n1 exited\xEF\xBF\xBDwith code 7",
                            "ELASTIC_SAME_FAILURES=2"}));
}

TEST(WorkerEnv, WorkersWithoutARoundHaveNoRank) {
  const JobConstants job{.run_id = "job/1", .role = "a", .max_restarts = 3};
  EXPECT_THAT(
      unranked_variables(job, 1, 2, "/logs/1/error.json"),
      UnorderedElementsAre("LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "ROLE_NAME=a",
                           "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_RUN_ID=job/1",
                           "TORCHELASTIC_ERROR_FILE=/logs/1/error.json",
                           "ELASTIC_ON_MEMBERSHIP_CHANGE=inplace", "ELASTIC_AWAITS_ROUND=1"));
  EXPECT_THAT(without_ranks({"RANK=3", "A=1", "MASTER_ADDR=m", "RANKS=4", "ELASTIC_ROUND=1"}),
              ElementsAre("A=1", "RANKS=4"));
}

TEST(WorkerEnv, TellsWorkersThatRank0HostsTheStore) {
  RoundInfo round;
  round.workers.resize(1);
  JobConstants job;
  job.share_store = false;
  EXPECT_THAT(rank_variables(job, round, 0, ""),
              ::testing::Contains("TORCHELASTIC_USE_AGENT_STORE=False"));
}

using Environment = std::vector<std::string>;

Environment merge(const Environment& base, const Environment& overlay, const Environment& top) {
  return merge_environment({&base, &overlay, &top});
}

TEST(WorkerEnv, MergingLeavesEachNameOnceInItsFirstPlaceWithItsLastValue) {
  EXPECT_THAT(merge({"A=1", "RANK=9", "B="}, {"RANK=0", "C=x=y"}, {}),
              ElementsAre("A=1", "RANK=0", "B=", "C=x=y"));
  EXPECT_THAT(merge({"A=1", "B=1"}, {"A=2", "B=2"}, {"A=3"}), ElementsAre("A=3", "B=2"));
  EXPECT_THAT(merge({"A=1", "B=2", "A=3"}, {}, {}), ElementsAre("A=3", "B=2"));
  EXPECT_THAT(merge({"junk", "A=1", ""}, {}, {}), ElementsAre("A=1")) << "invalid entries";
  EXPECT_THAT(merge({"RANK=1", "RANK_X=2"}, {"RANK=3"}, {}), ElementsAre("RANK=3", "RANK_X=2"));
}

}  // namespace
}  // namespace elastic::core
