#include "os/base/process.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

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

TEST_F(DescriptorLimit, IsKeptIfTheProgramChangedIt) {
  {
    const RaisedDescriptorLimit raised;
    set(300);
  }
  EXPECT_EQ(descriptor_limit(), 300u);
}

TEST_F(DescriptorLimit, CanBeRaisedInAChildThoughAnotherThreadDidSoDuringTheFork) {
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    while (!is_over) const RaisedDescriptorLimit raised;
  });
  int succeeded = 0;
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      { const RaisedDescriptorLimit raised; }
      ::_exit(0);
    }
    int status = -1;
    if (::waitpid(child, &status, 0) == child && status == 0) ++succeeded;
    if (succeeded <= i) break;  // it was killed by its alarm
  }
  is_over = true;
  other.join();
  EXPECT_EQ(succeeded, 100);
}

}  // namespace
}  // namespace elastic::os
