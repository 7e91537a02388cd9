// When a node counts its coordinator as lost.

#include "core/session/coordinator_loss.h"

#include <gtest/gtest.h>

#include <chrono>

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using Cause = CoordinatorWatch::Cause;

class CoordinatorWatchTest : public ::testing::Test {
 protected:
  static JobSettings settings() {
    JobSettings settings;
    settings.reconnect_grace = 50ms;
    settings.node_timeout = 5s;
    return settings;
  }
  // Until the deadline the coordinator is not lost.
  bool is_lost_after(Duration wait) {
    EXPECT_EQ(watch_.next_deadline(), now_ + wait);
    now_ += wait - Duration(1);
    EXPECT_FALSE(watch_.tick(now_));
    now_ += Duration(1);
    return watch_.tick(now_);
  }
  void open(std::uint64_t incarnation = 1) {
    watch_.connected(false, now_);
    watch_.opened(incarnation, now_);
  }

  Instant now_ = Instant(1h);
  CoordinatorWatch watch_;
};

TEST_F(CoordinatorWatchTest, AClosedConnectionMayBeResumedForReconnectGrace) {
  open();
  watch_.closed(settings(), 1ms, now_);
  const Instant closed_at = now_;
  EXPECT_TRUE(watch_.is_closed());
  EXPECT_TRUE(is_lost_after(50ms));
  EXPECT_FALSE(watch_.next_deadline());
  EXPECT_EQ(watch_.end(now_).cause, Cause::kClosed);
  EXPECT_EQ(watch_.end(now_).at, closed_at);
}

TEST_F(CoordinatorWatchTest, ASlowConnectionMayBeResumedForLongerThanReconnectGrace) {
  open();
  watch_.closed(settings(), 100ms, now_);
  EXPECT_TRUE(is_lost_after(600ms));
}

// Such as those with processes that only direct to it.
TEST_F(CoordinatorWatchTest, FurtherConnectionsThatEndDoNotPostponeTheLoss) {
  open();
  watch_.closed(settings(), 0ms, now_);
  now_ += 40ms;
  watch_.closed(settings(), 0ms, now_);
  EXPECT_TRUE(is_lost_after(10ms));
  open();
  watch_.closed(settings(), 0ms, now_);
  EXPECT_TRUE(is_lost_after(50ms)) << "of the next session";
}

TEST_F(CoordinatorWatchTest, AResumedSessionIsNotLost) {
  open();
  watch_.closed(settings(), 0ms, now_);
  EXPECT_FALSE(watch_.opened(1, now_)) << "it was not lost";
  EXPECT_FALSE(watch_.next_deadline());
  EXPECT_FALSE(watch_.is_closed());
}

TEST_F(CoordinatorWatchTest, SilenceIsJudgedByTheLastMessage) {
  open();
  now_ += 1s;
  watch_.silent(settings());
  now_ += 2s;
  EXPECT_FALSE(watch_.active(now_));
  const Instant last = now_;
  now_ += 2s;
  EXPECT_FALSE(watch_.tick(now_)) << "it has replied";
  EXPECT_FALSE(watch_.next_deadline());
  watch_.silent(settings());
  EXPECT_TRUE(is_lost_after(3s));
  EXPECT_EQ(watch_.end(now_).cause, Cause::kSilent);
  EXPECT_EQ(watch_.end(now_).at, last);
}

TEST_F(CoordinatorWatchTest, OneThatWasSilentReturnsOnTheOldConnection) {
  open();
  watch_.silent(settings());
  EXPECT_TRUE(is_lost_after(5s));
  EXPECT_TRUE(watch_.active(now_));
  EXPECT_FALSE(watch_.active(now_)) << "once";
}

TEST_F(CoordinatorWatchTest, AProcessReturnsOnANewConnectionUnlessItIsAnotherOne) {
  for (const std::uint64_t next : {1, 2}) {
    open();
    watch_.closed(settings(), 0ms, now_);
    EXPECT_TRUE(is_lost_after(50ms));
    EXPECT_FALSE(watch_.active(now_)) << "the connection may lead to any process";
    EXPECT_EQ(watch_.opened(next, now_), next == 1);
  }
}

// The node has no coordinator yet, or the last one was silent, so that it connected once more.
TEST_F(CoordinatorWatchTest, AConnectionWithoutAReplySaysNothingOfTheCoordinator) {
  for (const bool has_coordinator : {false, true}) {
    SCOPED_TRACE(has_coordinator);
    watch_ = {};
    if (has_coordinator) open();
    const Instant last = now_;
    watch_.silent(settings());
    watch_.connected(false, now_);
    now_ += 1s;
    EXPECT_FALSE(watch_.active(now_)) << "it was refused";
    watch_.closed(settings(), 0ms, now_);
    EXPECT_FALSE(watch_.is_closed());
    EXPECT_EQ(watch_.next_deadline().has_value(), has_coordinator);
    if (!has_coordinator) continue;
    EXPECT_TRUE(is_lost_after(4s)) << "by its silence";
    EXPECT_EQ(watch_.end(now_).cause, Cause::kSilent);
    EXPECT_EQ(watch_.end(now_).at, last);
  }
}

TEST_F(CoordinatorWatchTest, OneThatWasSilentReturnsOnANewConnectionUnlessItIsAnotherOne) {
  for (const std::uint64_t next : {1, 2}) {
    open();
    watch_.silent(settings());
    EXPECT_TRUE(is_lost_after(5s));
    watch_.connected(false, now_);
    EXPECT_FALSE(watch_.active(now_)) << "the connection may lead to any process";
    EXPECT_EQ(watch_.opened(next, now_), next == 1);
  }
}

TEST_F(CoordinatorWatchTest, ItIsLostOnce) {
  open();
  watch_.silent(settings());
  EXPECT_TRUE(is_lost_after(5s));
  watch_.closed(settings(), 0ms, now_);
  EXPECT_FALSE(is_lost_after(50ms));
  EXPECT_EQ(watch_.end(now_).cause, Cause::kSilent) << "the first one";
}

TEST_F(CoordinatorWatchTest, SilenceOfAClosedConnectionIsNoFurtherReason) {
  open();
  watch_.closed(settings(), 0ms, now_);
  watch_.silent(settings());
  EXPECT_TRUE(is_lost_after(50ms));
}

TEST_F(CoordinatorWatchTest, TheProcessOfTheRecordIsJudgedFromItsConnectionOn) {
  for (const bool is_lost : {false, true}) {
    open();
    watch_.closed(settings(), 0ms, now_);
    EXPECT_TRUE(!is_lost || is_lost_after(50ms));
    watch_.connected(true, now_);
    EXPECT_FALSE(watch_.next_deadline());
    watch_.silent(settings());
    EXPECT_TRUE(is_lost_after(5s));
    watch_.connected(true, now_);
    watch_.closed(settings(), 0ms, now_);
    EXPECT_TRUE(is_lost_after(50ms));
  }
}

TEST_F(CoordinatorWatchTest, TheCauseIsThatOfTheLossUntilTheJobHasACoordinator) {
  open();
  watch_.closed(settings(), 0ms, now_);
  watch_.handed_over(now_ + 1s);
  EXPECT_EQ(watch_.end(now_).cause, Cause::kClosed);
  watch_.settled();
  EXPECT_EQ(watch_.end(now_).cause, Cause::kHandedOver);
  EXPECT_EQ(watch_.end(now_).at, now_);
}

// No record names the coordinator, so that no message settles the loss.
TEST_F(CoordinatorWatchTest, ACauseIsNotThatOfALossThatIsOver) {
  open();
  watch_.closed(settings(), 0ms, now_);
  open();
  now_ += 1h;
  watch_.active(now_);
  const Instant last = now_;
  watch_.silent(settings());
  EXPECT_TRUE(is_lost_after(5s));
  EXPECT_EQ(watch_.end(now_).cause, Cause::kSilent);
  EXPECT_EQ(watch_.end(now_).at, last);
  EXPECT_TRUE(watch_.active(now_));
  watch_.closed(settings(), 0ms, now_);
  EXPECT_EQ(watch_.end(now_).cause, Cause::kClosed);
  open(2);
  EXPECT_EQ(watch_.end(now_).cause, Cause::kClosed) << "for the report that follows";
  watch_.handed_over(now_);
  EXPECT_EQ(watch_.end(now_).cause, Cause::kHandedOver);
}

TEST_F(CoordinatorWatchTest, ANodeThatJoinsAnotherJobHasLostNobody) {
  open();
  watch_.silent(settings());
  EXPECT_TRUE(is_lost_after(5s));
  watch_.closed(settings(), 0ms, now_);
  watch_.displaced();
  EXPECT_FALSE(watch_.next_deadline());
  EXPECT_FALSE(watch_.is_closed());
  EXPECT_FALSE(watch_.active(now_));
  EXPECT_EQ(watch_.end(now_).cause, Cause::kHandedOver);
}

}  // namespace
}  // namespace elastic::core
