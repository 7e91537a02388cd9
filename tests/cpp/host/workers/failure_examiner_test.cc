#include "host/workers/failure_examiner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "os/file/file.h"
#include "os/loop/clock.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

// The files of a worker that has failed, and a file server whose clock is behind.
struct FailedWorker {
  os::TemporaryDirectory directory = *os::TemporaryDirectory::create();
  WorkerFiles files{.error_file = directory.path() + "/error.json",
                    .stderr_path = directory.path() + "/stderr.log"};
  FailedWorker() {
    std::ofstream(files.error_file) << R"({"message": {"message": "boom"}})";
    std::ofstream(files.stderr_path) << "Traceback (most recent call last):\nValueError: boom\n";
  }
};

TEST(FailureExaminer, AReportHasTheTimeOfThisHostsClock) {
  const FailedWorker worker;
  const Instant written = os::monotonic_now();
  int questions = 0;
  FailureExaminer examiner([&](const std::string&) -> Duration {
    ++questions;
    return -2s;
  });
  examiner.begin_round(written);
  for (int i = 0; i < 3; ++i) {
    const FailureFindings found = examiner.examine(worker.files, false);
    ASSERT_TRUE(found.reported_at);
    EXPECT_GT(*found.reported_at, written + 1s) << "as the file server says, which is 2 s behind";
  }
  EXPECT_EQ(questions, 1) << "once for a file system and round";
  examiner.begin_round(written);
  examiner.examine(worker.files, false);
  EXPECT_EQ(questions, 2);
}

TEST(FailureExaminer, TheClockOfALocalFileSystemIsThisHosts) {
  const FailedWorker worker;
  EXPECT_EQ(os::file_clock_ahead("/proc/self/status"), Duration::zero());
  FailureExaminer examiner;
  examiner.begin_round(os::monotonic_now());
  EXPECT_LE(*examiner.examine(worker.files, false).reported_at, os::monotonic_now());
  EXPECT_FALSE(std::filesystem::exists(worker.files.error_file + ".clock"));
}

}  // namespace
}  // namespace elastic::host
