#include "core/base/describe.h"

#include <gtest/gtest.h>

#include <csignal>

#include "elastic/agent.h"

namespace elastic::core {
namespace {

TEST(Describe, WritesRunsOfRanksAsRanges) {
  EXPECT_EQ(ranges_text({0}), "0");
  EXPECT_EQ(ranges_text({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(ranges_text({0, 2, 3, 7}), "0,2-3,7");
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({0, 1, 2, 4}), "4 ranks (0-2,4)");
}

TEST(Describe, NamesAWorkerAsFarAsTheReaderNeeds) {
  EXPECT_EQ(describe_worker(3, "exited with code 1"), "rank 3 exited with code 1");
  EXPECT_EQ(describe_worker(3, "node7", "exited with code 1"),
            "rank 3 on node7 exited with code 1");
  EXPECT_EQ(describe_local_worker(3, 1, 77, "exited with code 1"),
            "rank 3 (local rank 1, pid 77) exited with code 1");
  EXPECT_EQ(describe_local_worker(3, 1, -1, ""), "rank 3 (local rank 1)");
}

TEST(Describe, CountsTheRestartsThatAreLeft) {
  EXPECT_EQ((RestartBudget{1, 3}.describe_left()), "2 of 3 restarts left");
  EXPECT_EQ((RestartBudget{1, 3}.describe_used()), "1 of 3 restarts used");
  EXPECT_EQ((RestartBudget{0, 0}.describe_used()), "no restarts allowed");
  EXPECT_EQ((RestartBudget{0, 0}.describe_spent()), "no restart is allowed");
  EXPECT_EQ((RestartBudget{1, 1}.describe_spent()), "the only restart was used");
  EXPECT_EQ((RestartBudget{3, 3}.describe_spent()), "none of 3 restarts is left");
}

WorkerFailure failure(int rank, std::string message) {
  WorkerFailure one;
  one.rank = one.local_rank = rank;
  one.pid = 100 + rank;
  one.message = std::move(message);
  return one;
}

TEST(Describe, TheReportOfALauncherHasTheEvidenceOfTheFirstFailure) {
  AgentResult result;
  EXPECT_EQ(result.report(), "") << "all workers succeeded";
  result.failures = {failure(1, "exited with code 1"), failure(0, "killed by signal 6 (SIGABRT)")};
  result.failures[0].evidence.emplace().error = "KeyError: 'x'";
  result.failures[0].stderr_tail = "Traceback\nKeyError: 'x'\n";
  result.failures[1].evidence.emplace().error = "Connection closed by peer";
  result.message = result.failures[0].describe() + "; none of 3 restarts is left";
  EXPECT_EQ(result.report(),
            "rank 1 (local rank 1, pid 101) exited with code 1; none of 3 restarts is left\n"
            "    error   KeyError: 'x'\n"
            "    last lines of its stderr:\n"
            "      | Traceback\n"
            "      | KeyError: 'x'\n"
            "also failed: rank 0 (local rank 0, pid 100) killed by signal 6 (SIGABRT)\n"
            "    error   Connection closed by peer");
}

TEST(Describe, TheReportOfANodeWithoutAFailureHasThatOfTheOtherNode) {
  AgentResult result;
  result.message = "rank 1 on b exited with code 1; no restart is allowed";
  result.job.emplace();
  result.job->evidence = FailureEvidence{.host = "host-b", .output = "line", .error = "OSError: x"};
  EXPECT_EQ(result.report(),
            "rank 1 on b exited with code 1; no restart is allowed\n"
            "    host    host-b\n"
            "    error   OSError: x\n"
            "    last lines of its stderr:\n"
            "      | line");
}

}  // namespace
}  // namespace elastic::core
