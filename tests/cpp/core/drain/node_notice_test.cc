// How long a node waits after a notice, and which exits are of its signal.

#include "core/drain/node_notice.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

namespace elastic::drain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Instant kBegin = Instant{} + std::chrono::hours(1);

WorkerExit killed(int signal, Instant at) {
  WorkerExit exit;
  exit.kind = ExitKind::kSignaled;
  exit.signal = signal;
  exit.at = at;
  return exit;
}

void feed(NodeNotice* notice, const NodeNotice::Event& event) {
  NodeNotice::Out out;
  notice->step(event, kBegin, &out);
  EXPECT_TRUE(out.empty());
}

TEST(NodeNotice, WaitsForTheCoordinatorUntilAMarginAfterTheLimit) {
  NodeNotice notice;
  notice.give(SIGTERM, false, kBegin);
  EXPECT_FALSE(notice.is_waiting());
  notice.wait(seconds(30), false, kBegin);
  EXPECT_TRUE(notice.is_waiting());
  const Instant end = kBegin + seconds(30) + kNoticeMargin;
  EXPECT_EQ(notice.next_deadline(), end);
  EXPECT_EQ(notice.why_over(end - milliseconds(1)), nullptr);
  EXPECT_STREQ(notice.why_over(end),
               "the coordinator has not stopped the job in time: stopping this node");
  notice.end_wait();
  EXPECT_EQ(notice.why_over(end), nullptr);
  EXPECT_EQ(notice.next_deadline(), std::nullopt);
}

TEST(NodeNotice, WaitsLessIfItLeavesAlone) {
  NodeNotice notice;
  notice.give(SIGTERM, true, kBegin);
  notice.wait(seconds(30), false, kBegin);
  const Instant end = kBegin + seconds(30) + kDepartureMargin;
  EXPECT_EQ(notice.next_deadline(), end);
  EXPECT_STREQ(notice.why_over(end),
               "this node could not leave at an agreed step in time: stopping it");
  feed(&notice, Order{});  // of a notice without a departure
  EXPECT_FALSE(notice.leaves_alone());
}

TEST(NodeNotice, WaitsWithoutWorkersOnlyForTheAnswerUntilARoundBegins) {
  NodeNotice notice;
  notice.give(SIGTERM, false, kBegin);
  notice.wait(seconds(30), true, kBegin);
  const Instant end = kBegin + kNoticeMargin;
  EXPECT_EQ(notice.next_deadline(), end);
  EXPECT_STREQ(notice.why_over(end), "no worker runs on this node: stopping it");
  feed(&notice, core::node_event::RoundBegan{});
  EXPECT_EQ(notice.why_over(end), nullptr);
  EXPECT_TRUE(notice.is_waiting());
}

TEST(NodeNotice, KnowsAWorkerThatItsSignalHasEndedBeforeTheNotice) {
  for (const Duration before : {Duration(kNoticeEcho), Duration(kNoticeEcho + milliseconds(1))}) {
    for (const int signal : {SIGTERM, SIGKILL}) {
      NodeNotice notice;
      feed(&notice, core::node_event::WorkerEnded{0, killed(signal, kBegin - before)});
      EXPECT_FALSE(notice.has_ended_worker());
      notice.give(SIGTERM, false, kBegin);
      EXPECT_EQ(notice.has_ended_worker(), signal == SIGTERM && before == kNoticeEcho);
      feed(&notice, core::node_event::RoundBegan{});
      EXPECT_FALSE(notice.has_ended_worker());
    }
  }
}

TEST(NodeNotice, KnowsTheExitOfAWorkerThatItsSignalHasEndedLater) {
  NodeNotice notice;
  EXPECT_FALSE(notice.is_of_notice(killed(SIGTERM, kBegin)));
  notice.give(SIGTERM, false, kBegin);
  EXPECT_TRUE(notice.is_of_notice(killed(SIGTERM, kBegin + kNoticeEcho)));
  EXPECT_FALSE(notice.is_of_notice(killed(SIGTERM, kBegin + kNoticeEcho + milliseconds(1))));
  EXPECT_FALSE(notice.is_of_notice(killed(SIGKILL, kBegin)));
  WorkerExit stopped = killed(SIGTERM, kBegin);
  stopped.stopped_by_us = true;
  EXPECT_FALSE(notice.is_of_notice(stopped));
  WorkerExit judged = killed(SIGTERM, kBegin);
  judged.verdict = "it hung";
  EXPECT_FALSE(notice.is_of_notice(judged));
  EXPECT_EQ(notice.describe_echo(),
            "signal 15 (SIGTERM) has also ended a worker, so no step can be agreed on: stopping "
            "this node");
}

}  // namespace
}  // namespace elastic::drain
