#include "core/workers/silent_guardian.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string_view>

namespace elastic::core {
namespace {

using std::chrono::seconds;

// The number of looks, one for each letter at the usual distance, until it is killed; 0: it is not.
std::size_t looks_until_its_end(std::string_view states) {
  Instant now{seconds(5)};
  SilentGuardian guardian(now);
  for (std::size_t i = 0; i < states.size(); ++i, now += SilentGuardian::kPause) {
    if (guardian.must_end(states[i], now)) return i + 1;
  }
  return 0;
}

TEST(SilentGuardian, IsKilledWhenItIsStoppedOrWaits) {
  for (const std::string_view states : {"TT", "tt", "DD", "SS", "ZZ", "SD"}) {
    EXPECT_EQ(looks_until_its_end(states), 2) << states;
  }
  const std::string_view unknown("\0\0", 2);
  EXPECT_EQ(looks_until_its_end(unknown), 2);
}

TEST(SilentGuardian, GetsMoreTimeWhileItIsReadyToRun) {
  EXPECT_EQ(looks_until_its_end("RRRRRRRRRR"), 0);
  EXPECT_EQ(looks_until_its_end("SRDRSRSRDR"), 0) << "it sleeps for a moment";
  EXPECT_EQ(looks_until_its_end("RRRRTT"), 6);
}

TEST(SilentGuardian, IsKilledInTheEnd) {
  const Instant since{seconds(5)};
  SilentGuardian guardian(since);
  EXPECT_FALSE(guardian.must_end('R', since + SilentGuardian::kStarvedMax - seconds(1)));
  EXPECT_TRUE(guardian.must_end('R', since + SilentGuardian::kStarvedMax));
}

TEST(SilentGuardian, IsReportedOnceWhenItIsReadyToRun) {
  SilentGuardian guardian{Instant()};
  EXPECT_FALSE(guardian.must_end('S', Instant()));
  EXPECT_FALSE(guardian.take_report());
  EXPECT_FALSE(guardian.must_end('R', Instant()));
  EXPECT_TRUE(guardian.take_report());
  EXPECT_FALSE(guardian.take_report());
}

}  // namespace
}  // namespace elastic::core
