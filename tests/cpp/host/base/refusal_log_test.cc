#include "host/base/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

class RefusalLogTest : public testing::Test {
 protected:
  std::vector<std::string> lines_;
  RefusalLog log_{[this](std::string_view line) { lines_.emplace_back(line); }};
  const Instant begin_{seconds(1000)};
};

TEST_F(RefusalLogTest, OneLineForEachAddressAndMinute) {
  for (int i = 0; i < 60; ++i) log_.report("10.0.0.9", "refused", begin_ + seconds(i));
  log_.report("10.0.0.8", "refused", begin_ + seconds(1));
  EXPECT_THAT(lines_, ElementsAre("10.0.0.9: refused", "10.0.0.8: refused"));
  log_.report("10.0.0.9", "refused", begin_ + seconds(60));
  EXPECT_EQ(lines_.back(), "10.0.0.9: refused (and 59 earlier attempts)");
}

TEST_F(RefusalLogTest, ManyAddressesShareOneEntry) {
  for (int i = 0; i < 5000; ++i) log_.report("host" + std::to_string(i), "refused", begin_);
  EXPECT_EQ(lines_.size(), RefusalLog::kAddressesMax + 1);
  EXPECT_EQ(lines_.back(), "further addresses: refused");
  log_.report("another", "refused", begin_ + seconds(61));
  EXPECT_EQ(lines_.back(), "another: refused") << "entries of earlier minutes are dropped";
}

}  // namespace
}  // namespace elastic::host
