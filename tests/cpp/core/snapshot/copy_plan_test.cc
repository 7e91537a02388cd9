#include "core/snapshot/copy_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/snapshot/copy_wire.h"

namespace elastic::snapshot {
namespace {

struct Places {
  const char* what;
  std::vector<CopyPlace> places;
  std::vector<std::size_t> shifts;
};

TEST(CopyPlan, ABuddyIsInAnotherDomainIfThereIsOne) {
  const Places cases[] = {
      {"one node", {{"a", ""}}, {}},
      {"two", {{"a", ""}, {"b", ""}}, {1}},
      {"three without a topology", {{"a", ""}, {"b", ""}, {"c", ""}}, {1, 2}},
      {"two racks of two", {{"a", "1"}, {"b", "1"}, {"c", "2"}, {"d", "2"}}, {2, 1, 3}},
      {"one rack", {{"a", "1"}, {"b", "1"}, {"c", "1"}}, {1, 2}},
      {"racks of two and of one: one node stays in its rack",
       {{"a", "1"}, {"b", "1"}, {"c", "2"}},
       {1, 2}},
      {"two nodes of a host", {{"a", ""}, {"a", ""}, {"b", ""}, {"b", ""}}, {2, 1, 3}},
      {"another host counts more than another rack",
       {{"a", "1"}, {"a", "2"}, {"b", "1"}, {"b", "2"}},
       {2, 1, 3}},
      {"one host", {{"a", ""}, {"a", ""}}, {1}},
  };
  for (const Places& one : cases) EXPECT_EQ(assign_buddies(one.places), one.shifts) << one.what;
}

class CopyPlanTest : public ::testing::Test {
 protected:
  static NodeId id(int node) { return {1, static_cast<std::uint64_t>(node)}; }

  // The node reports that it holds these steps and has copied those. The orders that follow, as
  // "0>1:8/5", the node, its buddy, the step and the one before.
  std::string report(int node, std::vector<std::int64_t> own, std::vector<std::int64_t> copied = {},
                     std::int64_t target = -1) {
    CopyReport report{.round = round_, .group_rank = node, .buddies = buddies_};
    report.address = report.host = std::to_string(node);
    for (const std::int64_t step : own) report.own.push_back({step, 1});
    for (const std::int64_t step : copied) report.copied.push_back({step, 1});
    if (target >= 0) report.target = {target, 1};
    CopyPlan::Out orders;
    plan_.step(Copied{id(node), report, round_, nodes_}, {}, &orders);
    std::string text;
    for (const auto& [to, order] : orders) {
      for (int i = 0; i < static_cast<int>(nodes_); ++i) {
        if (to == id(i)) text += (text.empty() ? "" : " ") + std::to_string(i);
      }
      text += ">" + order.buddy.address;
      for (const Buddy& one : order.more) text += "," + one.address;
      text += ":" + std::to_string(order.step.step) + "/" + std::to_string(order.base.step);
      if (order.hold >= 0) text += "+" + std::to_string(order.hold);
    }
    return text;
  }

  std::uint64_t round_ = 1;
  std::size_t nodes_ = 2;
  std::int32_t buddies_ = 1;
  CopyPlan plan_;
};

TEST_F(CopyPlanTest, AllNodesCopyTheNewestStepThatAllHave) {
  EXPECT_EQ(report(0, {4, 5}), "");
  EXPECT_EQ(report(1, {3, 4}), "0>1:4/-1 1>0:4/-1");
  EXPECT_EQ(report(0, {4, 6}, {}, 4), "");
  EXPECT_EQ(report(1, {4, 6}, {4}, 4), "");
  EXPECT_EQ(plan_.copied().step, -1);
  EXPECT_EQ(report(0, {4, 6}, {4}, 4), "0>1:6/4 1>0:6/4");
  EXPECT_EQ(plan_.copied().step, 4);
  EXPECT_EQ(report(0, {4, 6, 7}, {4, 6}, 6), "");
  EXPECT_EQ(report(1, {4, 6, 7}, {4, 6}, 6), "0>1:7/6 1>0:7/6");
}

// Two snapshots of each rank are enough if copies are faster than saves.
TEST_F(CopyPlanTest, TheStepBeforeIsReleasedWhenAllHaveCopiedTheNewest) {
  report(0, {4});
  EXPECT_EQ(report(1, {4}), "0>1:4/-1 1>0:4/-1");
  report(0, {4, 6}, {4}, 4);
  EXPECT_EQ(report(1, {4, 6}, {4}, 4), "0>1:6/4 1>0:6/4");
  EXPECT_EQ(report(0, {4, 6}, {4, 6}, 6), "");
  EXPECT_EQ(report(1, {4, 6}, {4, 6}, 6), "0>1:6/6 1>0:6/6");
  EXPECT_EQ(report(1, {6}, {6}, 6), "");  // once
  EXPECT_EQ(plan_.copied().step, 6);
}

TEST_F(CopyPlanTest, RanksThatSaveOftenKeepTheFirstSnapshotBehindAStep) {
  EXPECT_EQ(report(0, {100, 101}), "");
  EXPECT_EQ(report(1, {500, 501}), "0>1:-1/-1+601 1>0:-1/-1+601");
  EXPECT_EQ(report(0, {590, 591}), "");
  EXPECT_EQ(report(1, {700, 701}), "");                             // node 0 has not come so far
  EXPECT_EQ(report(0, {650, 800}), "0>1:-1/-1+824 1>0:-1/-1+824");  // node 1 had passed 601
  EXPECT_EQ(report(1, {825, 1000}), "");
  EXPECT_EQ(report(0, {825, 1100}), "0>1:825/-1 1>0:825/-1");
  report(0, {825, 1200}, {825}, 825);
  EXPECT_EQ(report(1, {825, 1300}, {825}, 825), "0>1:825/825+1325 1>0:825/825+1325");
}

TEST_F(CopyPlanTest, AnOrderThatWasLostIsRepeated) {
  report(0, {4});
  report(1, {4});
  EXPECT_EQ(report(0, {4}), "0>1:4/-1");
  EXPECT_EQ(report(0, {4}, {}, 4), "");
}

TEST_F(CopyPlanTest, AStepThatANodeDoesNotHoldAnyMoreGivesWayToANewerOne) {
  report(0, {4, 5});
  report(1, {4, 5});
  EXPECT_EQ(report(1, {6}, {}, 5), "");  // node 0 has not
  EXPECT_EQ(report(0, {5, 6}, {}, 5), "0>1:6/4 1>0:6/4");
}

TEST_F(CopyPlanTest, TheNextRoundBeginsWithItsOwnReports) {
  report(0, {4});
  report(1, {4});
  report(0, {4}, {4}, 4);
  report(1, {4}, {4}, 4);
  round_ = 2;
  EXPECT_EQ(report(0, {4}), "");
  EXPECT_EQ(plan_.copied().step, -1);
  EXPECT_EQ(report(1, {4}), "0>1:4/-1 1>0:4/-1");
}

TEST_F(CopyPlanTest, AnotherCoordinatorLearnsFromTheReportsWhatIsCopied) {
  EXPECT_EQ(report(0, {4, 6, 7}, {4}, 6), "");
  EXPECT_EQ(report(1, {4, 6, 7}, {4, 6}, 6), "0>1:6/4 1>0:6/4");
  EXPECT_EQ(report(0, {4, 6, 7}, {4, 6}, 6), "0>1:7/6 1>0:7/6");
}

TEST_F(CopyPlanTest, ANodeMayHaveSeveralBuddies) {
  nodes_ = 3;
  buddies_ = 2;
  report(0, {4});
  report(1, {4});
  EXPECT_EQ(report(2, {4}), "0>1,2:4/-1 1>2,0:4/-1 2>0,1:4/-1");
  EXPECT_EQ(report(0, {4}), "0>1,2:4/-1");
  buddies_ = 9;  // more than there are
  EXPECT_EQ(report(1, {4}), "1>2,0:4/-1");
}

TEST_F(CopyPlanTest, OneNodeCopiesNothing) {
  nodes_ = 1;
  EXPECT_EQ(report(0, {4, 5}), "");
}

TEST(CopyWire, MessagesComeBackAsTheyWere) {
  const std::string bytes = "abc";
  const CopyMessage messages[] = {
      {.kind = CopyKind::kPut, .state = {1, 2, 3, 4, 5}, .size = 6},
      {.kind = CopyKind::kPiece, .state = {0, 2, 3, 4, 5}, .data = bytes},
      {.kind = CopyKind::kDone, .state = {1, 2, 3, 4, 5}, .text = "why"},
  };
  for (const CopyMessage& one : messages) {
    const std::string encoded = encode(one);
    EXPECT_EQ(decode_copy(encoded), one);
    for (std::size_t cut = 0; cut + one.data.size() < encoded.size(); ++cut) {
      EXPECT_EQ(decode_copy(std::string_view(encoded).substr(0, cut)), std::nullopt);
    }
  }
  const CopyMessage bad[] = {
      {.kind = CopyKind::kGet, .state = {2, 2, 3, 4, 5}},
      {.kind = CopyKind::kGet, .state = {-1, 2, 3, 4, 5}},
      {.kind = CopyKind::kGet, .state = {1, 2, -1, 4, 5}},
      {.kind = CopyKind::kPiece, .state = {1, 2, 3, 4, 5}},
      {.kind = CopyKind::kTaken, .state = {1, 2, 3, 4, 5}, .data = bytes},
  };
  for (const CopyMessage& one : bad) EXPECT_EQ(decode_copy(encode(one)), std::nullopt);
}

}  // namespace
}  // namespace elastic::snapshot
