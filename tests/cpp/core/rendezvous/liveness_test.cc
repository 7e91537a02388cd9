#include "core/rendezvous/liveness.h"

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;

constexpr NodeId kA{0, 1};
constexpr NodeId kB{0, 2};
const Instant kStart(1000s);

// A firewall that resets all connections of the coordinator: a thousand nodes reconnect at once.
TEST(Liveness, TheGraceGrowsWithTheSessionsThatAreClosedAtOnce) {
  constexpr std::uint64_t kNodes = 1000;
  Liveness liveness(5s, 50ms);
  for (std::uint64_t i = 1; i <= kNodes; ++i) liveness.record_activity({0, i}, kStart);
  for (std::uint64_t i = 1; i <= kNodes; ++i) liveness.session_closed({0, i}, kStart);
  EXPECT_TRUE(liveness.take_lost(kStart + 51ms).empty());
  for (std::uint64_t i = 2; i <= kNodes; ++i) liveness.record_activity({0, i}, kStart + 1s);
  EXPECT_TRUE(liveness.take_lost(kStart + 1s).empty()) << "the others have just been served";
  const auto lost = liveness.take_lost(kStart + 50ms + kResumeTime * (kNodes - 1));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_TRUE(lost[0].by_close);
  // The next closure of one session has its own grace.
  liveness.session_closed({0, 2}, kStart + 3s);
  EXPECT_EQ(liveness.take_lost(kStart + 3050ms).size(), 1u);
}

TEST(Liveness, ClosingAgainDoesNotProlongTheGrace) {
  Liveness liveness(5s, 50ms);
  liveness.record_activity(kA, kStart);
  liveness.session_closed(kA, kStart);
  liveness.session_closed(kA, kStart + 40ms);
  EXPECT_EQ(liveness.take_lost(kStart + 50ms).size(), 1u);
}

TEST(Liveness, ALossHasTheGraceThatTheNodeHad) {
  Liveness liveness(5s, 50ms);
  liveness.record_activity(kA, kStart);
  liveness.session_closed(kA, kStart);
  auto lost = liveness.take_lost(kStart + 50ms);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].grace, 50ms);
  // By its round trip, and because of a second session.
  liveness.record_activity(kA, kStart + 1s);
  liveness.record_activity(kB, kStart + 1s);
  liveness.session_closed(kA, kStart + 1s, 600ms);
  liveness.session_closed(kB, kStart + 1s);
  const Instant lost_at = *liveness.next_deadline();
  lost = liveness.take_lost(lost_at);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].node, kB);
  EXPECT_EQ(lost[0].grace, 50ms + kResumeTime);
  EXPECT_EQ(lost[0].grace, lost_at - (kStart + 1s));
  lost = liveness.take_lost(kStart + 1s + 600ms + kResumeTime);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].grace, 600ms + kResumeTime);
}

TEST(Liveness, AGapIsNotChargedToAnyNode) {
  Liveness liveness(4s, 50ms);
  liveness.record_activity(kA, kStart);
  liveness.record_activity(kB, kStart);
  liveness.session_closed(kB, kStart);
  liveness.add_gap(60s);
  EXPECT_TRUE(liveness.take_lost(kStart + 60s).empty());
  EXPECT_EQ(liveness.take_lost(kStart + 60s + 50ms).size(), 1u);
  EXPECT_EQ(liveness.take_lost(kStart + 64s).size(), 1u);
}

TEST(Liveness, AForgottenNodeIsNeverLost) {
  Liveness liveness(5s, 50ms);
  liveness.record_activity(kA, kStart);
  liveness.forget(kA);
  EXPECT_TRUE(liveness.take_lost(kStart + 60s).empty());
  EXPECT_EQ(liveness.silence(kA, kStart), 0s);
}

// A node that sends heartbeats at the interval is not lost while delays stay below the rest of the
// timeout. A node that stops sending is lost within the timeout after its last heartbeat, although
// the deadline is only a bound.
TEST(Liveness, NodesWithHeartbeatsLiveAndSilentOnesAreLostInTime) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    Liveness liveness(5s, 50ms);
    constexpr std::uint64_t kNodes = 12;
    Instant next_beat[kNodes];
    Instant last_beat[kNodes];
    bool lost[kNodes] = {};
    for (std::uint64_t i = 0; i < kNodes; ++i) {
      liveness.record_activity({0, i}, kStart);
      last_beat[i] = kStart;
      next_beat[i] = kStart + Duration(rng.next() % 1'000'000'000);
    }
    const std::uint64_t silent = rng.next() % kNodes;
    const Instant silent_from = kStart + Duration(rng.next() % 20'000'000'000);
    Instant now = kStart;
    while (now < kStart + 40s) {
      Instant next = liveness.next_deadline().value_or(Instant::max());
      for (std::uint64_t i = 0; i < kNodes; ++i) next = std::min(next, next_beat[i]);
      now = std::max(now, next);
      for (std::uint64_t i = 0; i < kNodes; ++i) {
        if (next_beat[i] > now) continue;
        // A heartbeat each second, up to three seconds late.
        next_beat[i] = now + 1s + Duration(rng.next() % 3'000'000'000);
        if (i == silent && now >= silent_from) next_beat[i] = Instant::max();
        if (i == silent && now >= silent_from) continue;
        liveness.record_activity({0, i}, now);
        last_beat[i] = now;
      }
      for (const Liveness::Loss& loss : liveness.take_lost(now)) {
        ASSERT_EQ(loss.node.low, silent) << "seed " << seed;
        ASSERT_EQ(now, last_beat[silent] + 5s) << "seed " << seed;
        lost[loss.node.low] = true;
      }
    }
    ASSERT_TRUE(lost[silent]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace elastic::core
