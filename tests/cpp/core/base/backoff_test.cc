#include "core/base/random.h"

#include <gtest/gtest.h>

#include <chrono>

namespace elastic {
namespace {

using std::chrono::milliseconds;

TEST(Backoff, WaitsStayBelowABoundThatDoublesUpToTheCap) {
  Rng rng(7);
  Backoff backoff({.first = milliseconds(10), .cap = milliseconds(35)}, &rng);
  for (const int bound : {10, 20, 35, 35, 35}) {
    const Duration wait = backoff.next();
    EXPECT_GE(wait, Duration::zero());
    EXPECT_LT(wait, milliseconds(bound));
  }
}

TEST(Backoff, WaitsSpreadOverTheWholeRange) {
  Rng rng(1);
  int low = 0;
  constexpr int kDraws = 1000;
  for (int i = 0; i < kDraws; ++i) {
    Backoff backoff({.first = milliseconds(10)}, &rng);
    if (backoff.next() < milliseconds(5)) ++low;
  }
  EXPECT_GT(low, kDraws / 3);
  EXPECT_LT(low, kDraws * 2 / 3);
}

TEST(Backoff, SameSeedGivesTheSameWaits) {
  Rng one(42), two(42);
  Backoff first({}, &one), second({}, &two);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(first.next(), second.next());
}

}  // namespace
}  // namespace elastic
