// Helpers: processes of the guardian that survive the generations of workers. The test acts as the
// agent.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "core/workers/guardian_protocol.h"
#include "host/workers/worker_group_harness.h"
#include "os/process/spawn.h"

namespace elastic::guardian {
namespace {

using elastic::support::Fifo;
using elastic::support::generous_deadline;
using elastic::support::ScratchDir;
using elastic::support::stub;

constexpr std::uint32_t kHelperId = 1000;

class Helpers : public ::testing::Test {
 protected:
  Helpers() {
    auto spawned =
        os::spawn_helper(ELASTIC_TEST_GUARDIAN, std::to_string(::getpid()), kChannelDescriptor);
    EXPECT_TRUE(spawned.ok()) << spawned.status().message();
    if (spawned.ok()) guardian_ = std::move(*spawned);
    EXPECT_EQ(next("hello"), "hello");
  }
  ~Helpers() override {
    // Killing the guardian would leave the children of its helpers running: wait for its end.
    ::shutdown(guardian_.channel.get(), SHUT_WR);
    std::string event;
    while (event != "end" && event != "no end") event = next("end");
    EXPECT_EQ(event, "end");
    os::end_helper(guardian_.pid);
  }

  void start(std::uint32_t id, Lifetime lifetime, std::vector<std::string> arguments,
             const Fifo& output) {
    WorkerCommand command = stub(std::move(arguments));
    command.stdout_path = output.path();
    std::string bytes;
    append_start(&bytes, id, command, lifetime);
    send(bytes);
  }
  void send(const std::string& bytes) {
    ASSERT_EQ(::send(guardian_.channel.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void sweep() {
    std::string bytes;
    append_request(&bytes, SweepRequest{});
    send(bytes);
  }

  // The next event as text; "end" when the guardian has closed the channel.
  std::string next(const std::string& wanted) {
    std::string_view payload;
    while (received_.next(&payload) != core::FrameStatus::kFrame) {
      const os::WaitLimits limits{.deadline = generous_deadline()};
      if (!os::wait_ready(guardian_.channel.get(), POLLIN, limits).ok()) return "no " + wanted;
      char bytes[4096];
      const ssize_t got = ::read(guardian_.channel.get(), bytes, sizeof bytes);
      if (got <= 0) return "end";
      received_.append({bytes, static_cast<std::size_t>(got)});
    }
    Event event;
    EXPECT_TRUE(decode_event(payload, &event));
    return describe(event);
  }

  static std::string describe(const Event& event) {
    if (std::holds_alternative<HelloEvent>(event)) return "hello";
    if (const auto* one = std::get_if<StartedEvent>(&event)) {
      return "started " + std::to_string(one->id);
    }
    if (const auto* one = std::get_if<EndedEvent>(&event)) {
      if (one->exit.kind == ExitKind::kNotStarted) return "not started";
      const int how = one->exit.kind == ExitKind::kExited ? one->exit.code : one->exit.signal;
      return "ended " + std::to_string(one->id) + " by " + std::to_string(how);
    }
    if (const auto* one = std::get_if<TemplateEvent>(&event))
      return "template: " + std::string(one->text);
    if (std::holds_alternative<KillSentEvent>(event)) return "kill sent";
    return std::holds_alternative<SweptEvent>(event) ? "swept" : "?";
  }

  const ScratchDir dir_;
  Fifo helper_output_{dir_ / "helper"};
  Fifo worker_output_{dir_ / "worker"};
  os::Helper guardian_;
  core::FrameBuffer received_{kFrameLimits};
};

TEST_F(Helpers, SurviveASweepAndEndBySignal) {
  start(kHelperId, Lifetime::kHelper, {"pause"}, helper_output_);
  EXPECT_EQ(next("start of the helper"), "started 1000");
  EXPECT_TRUE(helper_output_.next_line());
  for (int generation = 0; generation < 2; ++generation) {
    start(0, Lifetime::kWorker, {"pause"}, worker_output_);
    EXPECT_EQ(next("start of the worker"), "started 0");
    sweep();
    EXPECT_EQ(next("kill"), "kill sent");
    EXPECT_EQ(next("exit of the worker"), "ended 0 by 9");
    EXPECT_EQ(next("end of the sweep"), "swept");
  }
  std::string bytes;
  append_request(
      &bytes, SignalRequest{SIGUSR1, SignalScope::kGroup, false, kEveryWorker});  // not for helpers
  append_request(&bytes, SignalRequest{SIGTERM, SignalScope::kGroup, false, kHelperId});
  send(bytes);
  EXPECT_EQ(next("exit of the helper"), "ended 1000 by 15");
  EXPECT_TRUE(helper_output_.wait_for_end());
}

TEST_F(Helpers, KeepTheirChildrenAndTheirOrphansAreSwept) {
  start(kHelperId, Lifetime::kHelper, {"child", std::to_string(SIGUSR1)}, helper_output_);
  EXPECT_EQ(next("start of the helper"), "started 1000");
  EXPECT_TRUE(helper_output_.next_line());
  Fifo orphan_output(dir_ / "orphan");
  start(kHelperId + 1, Lifetime::kHelper, {"daemon", "-1"}, orphan_output);
  EXPECT_EQ(next("start of the second helper"), "started 1001");
  EXPECT_TRUE(orphan_output.next_line()) << "the grandchild has detached";
  sweep();
  EXPECT_EQ(next("kill"), "kill sent");
  EXPECT_EQ(next("end of the sweep"), "swept");
  std::string bytes;
  append_request(&bytes, SignalRequest{SIGUSR1, SignalScope::kGroup, false, kHelperId});
  append_request(&bytes, SignalRequest{SIGTERM, SignalScope::kLeader, false, kHelperId + 1});
  send(bytes);
  EXPECT_EQ(helper_output_.next_line(), "got 10");
  EXPECT_EQ(helper_output_.next_line(), "got 10") << "the helper's child was killed";
  EXPECT_EQ(next("exit of the second helper"), "ended 1001 by 15");
  EXPECT_TRUE(orphan_output.wait_for_end()) << "the orphan still runs";
}

TEST_F(Helpers, EndWithTheAgent) {
  start(kHelperId, Lifetime::kHelper, {"pause"}, helper_output_);
  EXPECT_EQ(next("start of the helper"), "started 1000");
  EXPECT_TRUE(helper_output_.next_line());
  ::shutdown(guardian_.channel.get(), SHUT_WR);
  EXPECT_EQ(next("end of the guardian"), "end");
  EXPECT_TRUE(helper_output_.wait_for_end());
}

// The event that it cannot send any more is the last one: no other one wakes it.
TEST_F(Helpers, TheGuardianEndsIfItLearnsOfTheAgentsEndWhileItSends) {
  const os::UniqueFd guardian(static_cast<int>(::syscall(SYS_pidfd_open, guardian_.pid, 0)));
  if (!guardian.valid()) GTEST_SKIP() << "this kernel has no pidfd_open";
  ::shutdown(guardian_.channel.get(), SHUT_RD);
  sweep();
  const os::WaitLimits limits{.deadline = generous_deadline()};
  EXPECT_TRUE(os::wait_ready(guardian.get(), POLLIN, limits).ok());
}

TEST_F(Helpers, WorkersAreExecutedIfTheirTemplateCannotBe) {
  WorkerCommand missing = stub({"pause"});
  missing.argv[0] = "/nonexistent";
  WorkerCommand worker = stub({"pause"});
  worker.stdout_path = worker_output_.path();
  std::string bytes;
  append_start(&bytes, kTemplateId, missing, Lifetime::kHelper, 0, StartKind::kTemplate);
  append_start(&bytes, 0, worker, Lifetime::kWorker, 0, StartKind::kFork, std::chrono::hours(1));
  send(bytes);
  EXPECT_EQ(next("failed start of the template"), "not started");
  EXPECT_EQ(next("why the worker is executed"), "template: the template process has ended");
  EXPECT_EQ(next("start of the worker"), "started 0");
}

TEST_F(Helpers, AWorkerHearsNoSignalThatWasForwardedBeforeItsTemplateWasReady) {
  const std::string gate = dir_ / "gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  std::string bytes;
  append_start(&bytes, kTemplateId, stub({"template", gate, "7"}), Lifetime::kHelper, 0,
               StartKind::kTemplate);
  append_start(&bytes, 0, stub({"pause"}), Lifetime::kWorker, 0, StartKind::kFork,
               std::chrono::hours(1));
  append_request(&bytes, SignalRequest{SIGUSR1, SignalScope::kGroup, false, kEveryWorker});
  send(bytes);
  EXPECT_EQ(next("start of the template"), "started " + std::to_string(kTemplateId));
  ::close(::open(gate.c_str(), O_WRONLY));
  EXPECT_EQ(next("message of the template"), "template: ");
  EXPECT_EQ(next("start of the worker"), "started 0");
  EXPECT_EQ(next("exit of the worker"), "ended 0 by 7");
}

TEST_F(Helpers, SecondProcessOfOneIdIsRejected) {
  start(kHelperId, Lifetime::kHelper, {"pause"}, helper_output_);
  EXPECT_EQ(next("start of the helper"), "started 1000");
  start(kHelperId, Lifetime::kWorker, {"pause"}, worker_output_);
  EXPECT_EQ(next("end of the guardian"), "end");
}

}  // namespace
}  // namespace elastic::guardian
