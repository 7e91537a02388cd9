#include "os/loop/thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "os/base/process.h"
#include "support/eventually.h"

namespace elastic::os {
namespace {

// "FDSize", see proc_pid_status(5).
std::size_t table_size() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "FDSize:" && status >> word) return std::stoul(word);
  }
  return 0;
}

TEST(DescriptorTable, HasRoomBeforeDescriptorsAreOpened) {
  const std::size_t wanted = std::min<std::size_t>(2 * table_size(), descriptor_limit());
  enlarge_descriptor_table(wanted);
  EXPECT_TRUE(support::eventually([wanted] { return table_size() >= wanted; })) << wanted;
}

}  // namespace
}  // namespace elastic::os
