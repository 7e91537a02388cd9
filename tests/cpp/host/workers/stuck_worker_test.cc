// A worker that SIGKILL does not end within ten seconds: a debugger (ptrace) keeps its parent from
// reaping the dead process, as if it were in an uninterruptible wait.

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <string>

#include "host/workers/worker_group_harness.h"

namespace elastic {
namespace {

using Kind = WorkerEvent::Kind;

class StuckWorker : public ::testing::Test {
 protected:
  void SetUp() override {
    command_.stdout_path = output_.path();
    group_.start({command_});
    pid_ = group_.wait_for(Kind::kStarted).pid;
    ASSERT_TRUE(output_.next_line());
  }

  const support::ScratchDir dir_;
  support::Fifo output_{dir_ / "out"};
  support::Group group_;
  WorkerCommand command_ = support::stub({"pause"});
  int pid_ = -1;
};

TEST_F(StuckWorker, IsReportedAndTheGroupEndsAfterIt) {
  if (::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "ptrace is not allowed here: errno " << errno;
  }
  group_->stop(SIGTERM, Duration::zero());

  const WorkerEvent stuck = group_.wait_for(Kind::kStuck);
  EXPECT_EQ(stuck.pid, pid_);
  EXPECT_EQ(stuck.local_rank, 0);
  EXPECT_THAT(stuck.message, ::testing::HasSubstr(std::to_string(pid_)));
  EXPECT_THAT(stuck.message, ::testing::HasSubstr("state Z"));
  EXPECT_EQ(group_->start({command_}).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(group_.passed.empty());

  EXPECT_EQ(::waitpid(pid_, nullptr, __WALL), pid_);  // the debugger releases it
  EXPECT_EQ(group_.wait_for_exit().signal, SIGKILL);
  group_.wait_for_gone();
}

// A guardian that does not run does not kill the workers: its end does.
TEST_F(StuckWorker, IsKilledWithAGuardianThatDoesNotAnswer) {
  const int guardian = support::parent_of(pid_);
  ASSERT_GT(guardian, 1);
  ASSERT_EQ(::kill(guardian, SIGSTOP), 0);
  group_->stop(SIGTERM, Duration::zero());
  const WorkerEvent lost = group_.wait_for(Kind::kGuardianLost);
  EXPECT_THAT(lost.message,
              ::testing::HasSubstr("did not kill the workers in time and was killed"));
  EXPECT_TRUE(output_.wait_for_end());
}

}  // namespace
}  // namespace elastic
