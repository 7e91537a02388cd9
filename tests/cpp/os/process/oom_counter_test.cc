#include "os/process/kernel_evidence.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace elastic::os {
namespace {

// A file system with only the files that the counter reads.
class OomCounterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "oom-counter-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    write("/proc/vmstat", "pgfault 9\noom_kill 5\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << text;
  }

  std::string root_;
};

TEST_F(OomCounterTest, ReadsVersion2) {
  write("/proc/self/cgroup", "0::/job\n");
  write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("/sys/fs/cgroup/job/memory.events", "low 0\noom 2\noom_kill 3\noom_group_kill 0\n");
  const OomCounter counter(root_);
  EXPECT_EQ(counter.read(), 3u);
  EXPECT_EQ(counter.name(), "memory.events of the control group /job");
}

TEST_F(OomCounterTest, ReadsVersion1InAContainer) {
  write("/proc/self/cgroup", "5:cpu:/\n4:memory:/docker/a/job\n0::/\n");
  write("/proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "32 23 0:28 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  write("/sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill 1\n");
  EXPECT_EQ(OomCounter(root_).read(), 1u);
}

TEST_F(OomCounterTest, ReadsAMountWhoseNameHasABlank) {
  write("/proc/self/cgroup", "0::/job\n");
  write("/proc/self/mountinfo", "30 23 0:26 / /sys/a\\040b\\134c rw - cgroup2 cgroup2 rw\n");
  write("/sys/a b\\c/job/memory.events", "oom_kill 3\n");
  EXPECT_EQ(OomCounter(root_).read(), 3u);
}

TEST_F(OomCounterTest, UsesTheMachinesCountWithoutAGroup) {
  const OomCounter counter(root_);
  EXPECT_EQ(counter.read(), 5u);
  EXPECT_EQ(counter.name(), "/proc/vmstat of the machine");
}

TEST_F(OomCounterTest, IsUnknownWithoutAnyCounter) {
  std::filesystem::remove(root_ + "/proc/vmstat");
  EXPECT_EQ(OomCounter(root_).read(), std::nullopt);
}

}  // namespace
}  // namespace elastic::os
