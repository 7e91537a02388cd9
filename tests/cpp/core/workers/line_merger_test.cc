#include "core/workers/output_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/base/describe.h"

namespace elastic::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineMergerTest : public ::testing::Test {
 protected:
  explicit LineMergerTest() {
    for (int worker = 0; worker < 3; ++worker) merger_.add_worker(worker);
  }
  void feed(int worker, std::string_view text) { merger_.feed(worker, text, now_, sink_); }
  void wait(Duration duration) {
    now_ += duration;
    merger_.advance(now_, sink_);
  }

  LineMerger merger_;
  Instant now_;
  std::vector<std::string> lines_;
  const LineMerger::Sink sink_ = [this](const std::vector<int>& workers, std::string_view text) {
    lines_.push_back(ranges_text(workers) + " " + std::string(text));
  };
};

TEST_F(LineMergerTest, PassesOnALineOfAllWorkersAtOnce) {
  feed(0, "epoch 1");
  feed(2, "epoch 1");
  EXPECT_THAT(lines_, IsEmpty());
  feed(1, "epoch 1");
  EXPECT_THAT(lines_, ElementsAre("0-2 epoch 1"));
  EXPECT_EQ(merger_.next_deadline(), std::nullopt);
}

TEST_F(LineMergerTest, PassesOnALineOfSomeWorkersAfterTheTimeout) {
  feed(0, "warning");
  feed(2, "warning");
  EXPECT_EQ(merger_.next_deadline(), now_ + LineMerger::kMergeTimeout);
  wait(LineMerger::kMergeTimeout);
  EXPECT_THAT(lines_, ElementsAre("0,2 warning"));
}

TEST_F(LineMergerTest, KeepsTheOrderOfEveryWorker) {
  feed(0, "a");
  feed(0, "b");
  feed(1, "b");
  feed(1, "a");  // after its "b": cannot join the "a" before it
  wait(LineMerger::kMergeTimeout);
  EXPECT_THAT(lines_, ElementsAre("0 a", "0-1 b", "1 a"));
}

TEST_F(LineMergerTest, RepeatsOfOneWorkerStaySeparateLines) {
  for (int i = 0; i < 2; ++i) feed(0, "same");
  for (int worker : {1, 2}) {
    for (int i = 0; i < 2; ++i) feed(worker, "same");
  }
  EXPECT_THAT(lines_, ElementsAre("0-2 same", "0-2 same"));
}

TEST_F(LineMergerTest, DoesNotWaitForAWorkerThatHasEnded) {
  feed(0, "bye");
  feed(1, "bye");
  merger_.remove_worker(2);
  wait(Duration(1));
  EXPECT_THAT(lines_, ElementsAre("0-1 bye"));
}

TEST_F(LineMergerTest, WaitsForTheOthersIfAWorkerHasEndedAfterItsLine) {
  feed(0, "bye");
  merger_.remove_worker(0);
  feed(1, "bye");
  EXPECT_THAT(lines_, IsEmpty());
  merger_.remove_worker(1);
  feed(2, "bye");
  EXPECT_THAT(lines_, ElementsAre("0-2 bye"));
}

TEST_F(LineMergerTest, LimitsWhatWaits) {
  for (std::size_t i = 0; i <= LineMerger::kLinesMax; ++i) feed(0, std::to_string(i));
  EXPECT_THAT(lines_, ElementsAre("0 0"));
  feed(1, std::string(LineMerger::kBytesMax + 1, 'x'));
  EXPECT_EQ(lines_.size(), LineMerger::kLinesMax + 2);
}

}  // namespace
}  // namespace elastic::core
