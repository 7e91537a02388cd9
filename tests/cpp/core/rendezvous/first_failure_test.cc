#include "core/rendezvous/first_failure.h"

#include <gtest/gtest.h>

namespace elastic::core {
namespace {

using std::chrono::seconds;

FailureReport report(int rank, int at, const char* error = "") {
  FailureReport one{.rank = rank, .at = Instant(seconds(at))};
  one.evidence.emplace().error = error;
  return one;
}
bool note(FirstFailure* first, const char* name, const FailureReport& one) {
  return first->note({1, static_cast<std::uint64_t>(name[0])}, name, one, one.at);
}

TEST(FirstFailure, IsTheEarliestOne) {
  FirstFailure first;
  EXPECT_TRUE(note(&first, "b", report(1, 5)));
  EXPECT_FALSE(note(&first, "c", report(2, 6)));
  EXPECT_FALSE(note(&first, "c", report(2, 5))) << "the first report wins";
  EXPECT_TRUE(note(&first, "a", report(0, 4)));
  EXPECT_EQ(first.name, "a");
  EXPECT_EQ(first.node, (NodeId{1, 'a'}));
}

TEST(FirstFailure, NodesOfOneNameAreDifferent) {
  FirstFailure first;
  EXPECT_TRUE(first.note({0, 1}, "n", report(0, 5, "ValueError: loss is nan"), report(0, 5).at));
  EXPECT_FALSE(first.note({0, 2}, "n", report(0, 6), report(0, 6).at));
  EXPECT_EQ(first.report->evidence->error, "ValueError: loss is nan");
}

TEST(FirstFailure, ALostPeerFollowsTheFailureOfThePeer) {
  FirstFailure first;
  EXPECT_TRUE(
      note(&first, "b", report(1, 3, "RuntimeError: [pair.cc:5] Connection closed by peer")));
  EXPECT_TRUE(note(&first, "a", report(0, 5, "ValueError: loss is nan")));
  EXPECT_FALSE(
      note(&first, "b", report(2, 2, "RuntimeError: [pair.cc:5] Connection closed by peer")));
  EXPECT_EQ(first.report->rank, 0);
}

TEST(FirstFailure, ALaterReportOfTheSameWorkerKeepsTheEarlierTime) {
  FirstFailure first;
  note(&first, "a", report(0, 3));
  EXPECT_TRUE(note(&first, "a", report(0, 5, "ValueError: loss is nan")));
  EXPECT_EQ(first.report->at, Instant(seconds(3)));
  EXPECT_EQ(first.report->evidence->error, "ValueError: loss is nan");
}

}  // namespace
}  // namespace elastic::core
