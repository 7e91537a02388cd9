#include "core/base/text.h"

#include <gtest/gtest.h>

namespace elastic::core {
namespace {

TEST(DurationText, HasTheUnitThatFits) {
  const struct {
    double seconds;
    const char* text;
  } cases[] = {
      {0, "0 ms"},
      {0.0005, "0.5 ms"},
      {0.05, "50 ms"},
      {0.9994, "999 ms"},
      {0.9996, "1 s"},
      {2.5, "2.5 s"},
      {9.976, "9.98 s"},
      {59.9, "59.9 s"},
      {59.96, "1 min"},
      {60, "1 min"},
      {61.4, "1 min 1 s"},
      {600, "10 min"},
      {3599.4, "59 min 59 s"},
      {3599.6, "1 h"},
      {3900, "1 h 5 min"},
      {90000, "25 h"},
  };
  for (const auto& [seconds, text] : cases) {
    EXPECT_EQ(duration_text(from_seconds(seconds)), text) << seconds;
  }
}

}  // namespace
}  // namespace elastic::core
