// Which workers failed before they were stopped.

#include "host/agent/failure_inquiry.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/workers/worker_group_harness.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

// A file system shows what a worker has written before the stop only after it: the worker is
// examined at the stop, and again when it has ended.
TEST(FailureInquiry, StoppedWorkerIsExaminedAgainWhenItHasEnded) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("agent", &group);
  const support::ScratchDir scratch;
  AgentOptions options;
  options.workers.resize(1);
  options.log_dir = scratch / "logs";
  WorkerOutput output(&thread->loop(), options, [](const std::string&) {});
  std::vector<core::FailureFound> found;
  FailureInquiry inquiry(&thread->loop(), &output,
                         [&](const core::FailureFound& one) { found.push_back(one); }, {});
  auto round = std::make_shared<RoundInfo>();
  round->round = 1;
  round->workers.resize(1);
  std::optional<Status> opened;
  output.begin_round(round, [&](const Status& status) { opened = status; });
  ASSERT_TRUE(group.await([&] { return opened.has_value(); }));
  ASSERT_TRUE(opened->ok()) << opened->message();
  inquiry.begin_round(1);
  inquiry.worker_started(0, 77);
  inquiry.workers_stopped(true);
  bool is_examined = false;
  inquiry.finish_round([&] { is_examined = true; });
  ASSERT_TRUE(group.await([&] { return is_examined; }));
  EXPECT_TRUE(found.empty());

  const std::string& path = output.files().workers[0].error_file;
  std::ofstream(path) << R"({"message": {"message": "KeyError: 'x'"}})";
  const timespec long_ago[] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  WorkerExit exit;
  exit.kind = ExitKind::kSignaled;
  exit.signal = SIGTERM;
  exit.stopped_by_us = true;
  exit.at = group.now();
  inquiry.worker_ended(0, 77, exit);
  ASSERT_TRUE(group.await([&] { return !found.empty(); }));
  EXPECT_EQ(found[0].worker.local_rank, 0);
  EXPECT_EQ(found[0].worker.evidence.error, "KeyError: 'x'");
}

TEST(FailureInquiry, ReportsAWorkerThatStillRunsAfterItsTraceback) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("agent", &group);
  AgentOptions options;
  options.workers.resize(2);
  for (WorkerTemplate& worker : options.workers) worker.stderr_target = StreamTarget::kDiscard;
  WorkerOutput output(&thread->loop(), options, [](const std::string&) {});
  std::vector<std::string> late;
  FailureInquiry inquiry(
      &thread->loop(), &output, [](const core::FailureFound&) {},
      [&](int local_rank, const std::string& error) {
        late.push_back(std::to_string(local_rank) + ": " + error);
      });
  const std::vector<WorkerStream> streams = output.open_channels();
  inquiry.begin_round(2);
  for (int rank = 0; rank < 2; ++rank) {
    constexpr std::string_view kTraceback =
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
        "ValueError: bad\n";
    const auto index = static_cast<std::size_t>(rank);
    inquiry.worker_started(rank, 77 + rank);
    ASSERT_EQ(::write(streams.at(index).descriptor.get(), kTraceback.data(), kTraceback.size()),
              static_cast<ssize_t>(kTraceback.size()));
    ASSERT_TRUE(output.tail(rank).traceback_at);
  }
  WorkerExit exit;
  exit.kind = ExitKind::kExited;
  exit.at = group.now();
  inquiry.worker_ended(0, 77, exit);
  group.advance(FailureInquiry::kEndTimeout - std::chrono::seconds(1));
  EXPECT_TRUE(late.empty());
  group.advance(std::chrono::seconds(1));
  EXPECT_EQ(late, std::vector<std::string>{"1: ValueError: bad"});
  group.advance(std::chrono::minutes(5));
  EXPECT_EQ(late.size(), 1) << "once";
}

// Nobody reads a stderr that goes to a file; the worker itself reports the exception.
TEST(FailureInquiry, ReportsAWorkerThatStillRunsAfterATracebackInAFile) {
  support::LoopGroup group;
  const auto thread = *os::LoopThread::start("agent", &group);
  const support::ScratchDir scratch;
  AgentOptions options;
  options.workers.resize(2);
  for (WorkerTemplate& worker : options.workers) worker.stderr_target = StreamTarget::kFile;
  options.log_dir = scratch / "logs";
  WorkerOutput output(&thread->loop(), options, [](const std::string&) {});
  std::vector<std::string> late;
  FailureInquiry inquiry(
      &thread->loop(), &output, [](const core::FailureFound&) {},
      [&](int local_rank, const std::string& error) {
        late.push_back(std::to_string(local_rank) + ": " + error);
      });
  auto round = std::make_shared<RoundInfo>();
  round->round = 1;
  round->workers.resize(2);
  std::optional<Status> opened;
  output.begin_round(round, [&](const Status& status) { opened = status; });
  ASSERT_TRUE(group.await([&] { return opened.has_value(); }));
  ASSERT_TRUE(opened->ok()) << opened->message();
  inquiry.begin_round(2);
  for (int rank = 0; rank < 2; ++rank) {
    inquiry.worker_started(rank, 77 + rank);
    std::ofstream(output.files().workers[static_cast<std::size_t>(rank)].stderr_path)
        << "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
           "ValueError: bad\n";
    inquiry.worker_raised(rank, group.now());
  }
  WorkerExit exit;
  exit.kind = ExitKind::kExited;
  exit.at = group.now();
  inquiry.worker_ended(0, 77, exit);
  group.advance(FailureInquiry::kEndTimeout - std::chrono::seconds(1));
  EXPECT_TRUE(late.empty());
  group.advance(std::chrono::seconds(1));
  ASSERT_TRUE(group.await([&] { return !late.empty(); }));
  EXPECT_EQ(late, std::vector<std::string>{"1: ValueError: bad"});
}

}  // namespace
}  // namespace elastic::host
