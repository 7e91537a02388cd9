// A worker that SIGKILL does not end within ten seconds: a debugger (ptrace) keeps its parent from
// reaping the dead process, as if it were in an uninterruptible wait.

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <fstream>
#include <string>

#include "host/workers/worker_group_harness.h"

namespace elastic {
namespace {

using Kind = WorkerEvent::Kind;

TEST(StuckWorker, IsReportedAndTheGroupEndsAfterIt) {
  const testing::ScratchDir dir;
  testing::Fifo output(dir / "out");
  testing::Group group;
  WorkerCommand command = testing::stub({"pause"});
  command.stdout_path = output.path();
  group.start({command});
  const int pid = group.wait_for(Kind::kStarted).pid;
  ASSERT_TRUE(output.next_line());
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "ptrace is not allowed here: errno " << errno;
  }
  group->stop(SIGTERM, Duration::zero());

  const WorkerEvent stuck = group.wait_for(Kind::kStuck);
  EXPECT_EQ(stuck.pid, pid);
  EXPECT_EQ(stuck.local_rank, 0);
  EXPECT_THAT(stuck.message, ::testing::HasSubstr(std::to_string(pid)));
  EXPECT_THAT(stuck.message, ::testing::HasSubstr("state Z"));
  EXPECT_EQ(group->start({command}).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(group.passed.empty());

  EXPECT_EQ(::waitpid(pid, nullptr, __WALL), pid);  // the debugger releases it
  EXPECT_EQ(group.wait_for_exit().signal, SIGKILL);
  group.wait_for_gone();
}

// A guardian that does not run kills nobody: its end does.
TEST(StuckWorker, OfAGuardianThatDoesNotAnswerIsKilledWithIt) {
  const testing::ScratchDir dir;
  testing::Fifo output(dir / "out");
  testing::Group group;
  WorkerCommand command = testing::stub({"pause"});
  command.stdout_path = output.path();
  group.start({command});
  const int pid = group.wait_for(Kind::kStarted).pid;
  ASSERT_TRUE(output.next_line());
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  pid_t guardian = 0;
  for (std::string word; guardian == 0 && status >> word;) {
    if (word == "PPid:") status >> guardian;
  }
  ASSERT_GT(guardian, 1);
  ASSERT_EQ(::kill(guardian, SIGSTOP), 0);
  group->stop(SIGTERM, Duration::zero());
  const WorkerEvent lost = group.wait_for(Kind::kGuardianLost);
  EXPECT_THAT(lost.message,
              ::testing::HasSubstr("did not kill the workers in time and was killed"));
  EXPECT_TRUE(output.wait_for_end());
}

}  // namespace
}  // namespace elastic
