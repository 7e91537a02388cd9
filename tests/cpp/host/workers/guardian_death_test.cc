// The death of an agent or a guardian: a separate agent program (stub_agent) with a worker, and a
// grandchild of it that created a session and forked twice.

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/workers/worker_group_harness.h"

namespace elastic {
namespace {

using support::Fifo;
using support::ScratchDir;

class Death : public ::testing::Test {
 protected:
  // Starts the agent; returns when the grandchild runs.
  void start(const char* subreaper) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, agent_output_.path().c_str(),
                                       O_WRONLY, 0);
    const char* argv[] = {ELASTIC_TEST_STUB_AGENT,
                          subreaper,
                          worker_output_.path().c_str(),
                          ELASTIC_TEST_STUB_WORKER,
                          "daemon",
                          "-1",
                          nullptr};
    ASSERT_EQ(::posix_spawn(&agent_, argv[0], &actions, nullptr, const_cast<char**>(argv), environ),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    ASSERT_EQ(std::sscanf(worker_output_.next_line().value_or("").c_str(), "ready %d %d",
                          &grandchild_, &guardian_),
              2);
    ASSERT_NE(guardian_, agent_) << "orphans belong to the guardian";
  }
  void TearDown() override {
    ::kill(agent_, SIGKILL);
    ::waitpid(agent_, nullptr, 0);
  }

  const ScratchDir dir_;
  Fifo agent_output_{dir_ / "agent"};
  Fifo worker_output_{dir_ / "worker"};
  pid_t agent_ = -1;
  pid_t guardian_ = -1;
  pid_t grandchild_ = -1;
};

// The agent's own child holds a copy of the channel, so the guardian receives no end of file.
TEST_F(Death, WorkersAndTheirDescendantsEndWithTheAgent) {
  start("0");
  ::kill(agent_, SIGKILL);
  EXPECT_TRUE(worker_output_.wait_for_end());
}

TEST_F(Death, WorkersAndTheirDescendantsEndWithTheGuardianUnderASubreaper) {
  start("1");
  ::kill(guardian_, SIGKILL);
  EXPECT_TRUE(worker_output_.wait_for_end());
  std::string last;
  while (auto line = agent_output_.next_line()) last = *line;
  EXPECT_EQ(last, "children survived");
}

TEST_F(Death, TheEmbeddingProgramReceivesTheLossOfTheGuardian) {
  start("0");
  ::kill(guardian_, SIGKILL);
  std::string lost;
  while (auto line = agent_output_.next_line()) {
    if (line->rfind("lost", 0) == 0) lost = *line;
  }
  EXPECT_NE(lost.find("was killed by signal 9"), std::string::npos) << lost;
  ::kill(grandchild_, SIGKILL);  // without a subreaper the library does not kill it
  EXPECT_TRUE(worker_output_.wait_for_end());
}

TEST(GuardianProgram, IsReportedAsLostIfItIsNoGuardian) {
  WorkerGroupOptions options;
  options.guardian_path = "/bin/true";
  auto group = WorkerGroup::create(options);
  ASSERT_TRUE(group.ok());
  const auto event = (*group)->next_event(support::generous_deadline());
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, WorkerEvent::Kind::kGuardianLost);
  EXPECT_NE(event->message.find("before it sent its hello"), std::string::npos) << event->message;
  EXPECT_EQ((*group)->start({support::stub({"exit", "0"})}).code(),
            StatusCode::kFailedPrecondition);
}

TEST(GuardianProgram, IsNamedInTheErrorIfItIsMissing) {
  WorkerGroupOptions options;
  options.guardian_path = "/no/such/guardian";
  const auto group = WorkerGroup::create(options);
  EXPECT_EQ(group.status().code(), StatusCode::kNotFound);
  EXPECT_NE(group.status().message().find("/no/such/guardian"), std::string::npos);
}

}  // namespace
}  // namespace elastic
