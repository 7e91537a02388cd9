#include "core/job/ended_jobs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

namespace elastic::core {
namespace {

const NodeId kLost = {1, 1}, kOther = {1, 2};

std::shared_ptr<const JobResult> result_with(const std::string& message) {
  JobResult result;
  result.message = message;
  return std::make_shared<const JobResult>(result);
}

TEST(EndedJobsTest, ALostNodeReceivesTheResultForAWhile) {
  EndedJobs ended;
  const auto result = result_with("all nodes have finished");
  const Instant now{};
  ended.add("job", result, {kLost}, now);
  EXPECT_EQ(ended.result_for("job", kLost, now), result);
  EXPECT_EQ(ended.result_for("job", kOther, now), nullptr);
  EXPECT_EQ(ended.result_for("other", kLost, now), nullptr);
  const Duration step = std::chrono::nanoseconds(1);
  EXPECT_EQ(ended.result_for("job", kLost, now + kResultKept - step), result);
  EXPECT_EQ(ended.result_for("job", kLost, now + kResultKept), nullptr);
}

TEST(EndedJobsTest, TheNextEndOfAnIdReplacesTheLast) {
  EndedJobs ended;
  ended.add("job", result_with("first"), {kLost}, {});
  const auto second = result_with("second");
  ended.add("job", second, {kOther}, {});
  EXPECT_EQ(ended.result_for("job", kLost, {}), nullptr);
  EXPECT_EQ(ended.result_for("job", kOther, {}), second);
  ended.add("job", result_with("third"), {}, {});
  EXPECT_EQ(ended.result_for("job", kOther, {}), nullptr);
}

TEST(EndedJobsTest, TheOldestMakePlace) {
  EndedJobs ended;
  const auto id = [](int number) { return "job" + std::to_string(number); };
  Instant now{};
  for (int number = 0; number < 300; ++number) {
    ended.add(id(number), result_with(""), {kLost}, now += std::chrono::milliseconds(1));
  }
  EXPECT_EQ(ended.result_for(id(0), kLost, now), nullptr);
  EXPECT_NE(ended.result_for(id(299), kLost, now), nullptr);
}

}  // namespace
}  // namespace elastic::core
