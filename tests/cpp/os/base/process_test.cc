#include "os/base/process.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>

namespace elastic::os {
namespace {

class DescriptorLimit : public ::testing::Test {
 protected:
  DescriptorLimit() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    set(256);
  }
  ~DescriptorLimit() override { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void SetUp() override {
    if (before_.rlim_max <= 512) GTEST_SKIP() << "the hard limit is too low";
  }
  void set(rlim_t soft) const {
    const rlimit limit{soft, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  rlimit before_{};
};

TEST_F(DescriptorLimit, IsRaisedUntilTheLastOwnerEnds) {
  auto first = std::make_unique<RaisedDescriptorLimit>();
  auto second = std::make_unique<RaisedDescriptorLimit>();
  EXPECT_GT(descriptor_limit(), 256u);
  first.reset();
  EXPECT_GT(descriptor_limit(), 256u);
  second.reset();
  EXPECT_EQ(descriptor_limit(), 256u);
}

TEST_F(DescriptorLimit, OfTheProgramIsKept) {
  {
    const RaisedDescriptorLimit raised;
    set(300);
  }
  EXPECT_EQ(descriptor_limit(), 300u);
}

}  // namespace
}  // namespace elastic::os
