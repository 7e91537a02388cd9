#include "core/session/coordinator_state.h"

#include <gtest/gtest.h>

#include <string>

namespace elastic::core {
namespace {

TEST(CoordinatorStateTest, HostsOfJobsThatHaveEndedAreKept) {
  const StoredJob job{.id = "a", .term = 3, .settings = {}, .state = "bytes"};
  const StoredHosts hosts = {{"b", std::string("\0memory", 7)}, {"c", "more"}};
  StoredHosts found;
  const auto jobs = decode_jobs(encode_jobs({job}, hosts), &found);
  ASSERT_TRUE(jobs.ok());
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ((*jobs)[0].state, "bytes");
  EXPECT_EQ(found, hosts);
  EXPECT_TRUE(decode_jobs(encode_jobs({job}, hosts)).ok());
}

TEST(CoordinatorStateTest, AFileWithoutHostsIsTheOneOfEarlierVersions) {
  const StoredJob job{.id = "a", .settings = {}, .state = ""};
  EXPECT_LT(encode_jobs({job}).size(), encode_jobs({job}, {{"b", ""}}).size());
  StoredHosts found = {{"b", ""}};
  EXPECT_TRUE(decode_jobs(encode_jobs({job}), &found).ok());
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace elastic::core
