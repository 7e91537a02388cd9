// Whether one more job may begin at a coordinator, and which idle one makes room for it.

#include "core/session/job_room.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace elastic::core {
namespace {

TEST(MakeRoom, RemovesTheOldestIdleJobOrRefuses) {
  const auto jobs_of = [](std::size_t count, const std::string& beginner, bool is_idle) {
    std::vector<JobHere> jobs;
    for (std::size_t i = 0; i < count; ++i) {
      jobs.push_back({"job" + std::to_string(i), beginner, 100 - i, is_idle});
    }
    return jobs;
  };
  struct Case {
    std::string name;
    std::vector<JobHere> jobs;
    std::size_t jobs_max;
    std::string beginner;
    bool needs_token;
    std::string expected;  // "-": refused
  };
  const std::vector<Case> cases = {
      {"there is room", jobs_of(3, "a", false), 4, "a", false, ""},
      {"full", jobs_of(4, "a", false), 4, "b", false, "-"},
      {"full, and idle ones: the oldest", jobs_of(4, "a", true), 4, "b", false, "job3"},
      {"a quarter of one address", jobs_of(25, "a", false), 100, "a", false, "-"},
      {"one less", jobs_of(24, "a", false), 100, "a", false, ""},
      {"another address", jobs_of(25, "a", false), 100, "b", false, ""},
      {"with a token", jobs_of(25, "a", false), 100, "a", true, ""},
      {"its own idle job", jobs_of(25, "a", true), 100, "a", false, "job24"},
      {"a few are allowed in any case", jobs_of(15, "a", false), 20, "a", false, ""},
      {"a few, and no more", jobs_of(16, "a", false), 20, "a", false, "-"},
  };
  for (const Case& one : cases) {
    const auto room = make_room(one.jobs, one.jobs_max, one.beginner, one.needs_token);
    EXPECT_EQ(room.ok() ? *room : "-", one.expected) << one.name;
    if (!room.ok()) {
      EXPECT_EQ(room.status().code(), StatusCode::kResourceExhausted) << one.name;
    }
  }
}

}  // namespace
}  // namespace elastic::core
