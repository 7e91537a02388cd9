#include "core/session/node_reports.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <variant>

#include "support/instant.h"

namespace elastic::core {
namespace {

using std::chrono::seconds;
using support::at;

TEST(KeptReports, NothingIsSentThatWasNeverReported) {
  KeptReports kept;
  kept.coordinator_replied(1);
  EXPECT_TRUE(kept.after_resume(at(1)).empty());
  EXPECT_EQ(kept.after_resumed(at(1)), std::nullopt);
}

TEST(KeptReports, ReportsHaveAgedWithEachResume) {
  KeptReports kept;
  kept.keep(hang::RankFinished{.round = 2, .rank = 5, .limit = seconds(60)}, Delivery::kSent,
            at(10));
  kept.keep(drain::Notice{.left = seconds(4), .reason = "SIGTERM"}, Delivery::kSent, at(11));
  for (const int now : {12, 13, 20}) {
    const auto messages = kept.after_resume(at(now));
    ASSERT_EQ(messages.size(), 2U);
    const auto& finished = std::get<hang::RankFinished>(messages[0]);
    EXPECT_EQ(finished.age, seconds(now - 10));
    EXPECT_EQ(finished.limit, seconds(60));
    EXPECT_EQ(std::get<drain::Notice>(messages[1]).left, seconds(std::max(15 - now, 0)));
  }
}

TEST(KeptReports, WhatIsHeldFollowsTheNextMessageOfTheSameCoordinator) {
  KeptReports kept;
  kept.keep(drain::Notice{.left = seconds(4)}, Delivery::kHeld, at(1));
  kept.keep(hang::NodeProgress{.round = 2}, Delivery::kHeld, at(1));
  kept.keep(gate::Finding{.host = "a"}, Delivery::kHeld, at(1));
  for (std::size_t i = 0; i <= kRepliesHeld; ++i) {
    kept.keep(drain::Reply{.proposal = i}, Delivery::kHeld, at(1));
  }
  const auto held = kept.after_silence(at(2));
  ASSERT_EQ(held.size(), kRepliesHeld + 3);
  EXPECT_EQ(std::get<drain::Reply>(held.front()).proposal, 1U) << "the oldest is dropped";
  EXPECT_EQ(std::get<drain::Notice>(held[kRepliesHeld]).left, seconds(3));
  EXPECT_EQ(std::get<hang::NodeProgress>(held[kRepliesHeld + 1]).idle, seconds(1));
  EXPECT_EQ(std::get<gate::Finding>(held.back()).age, seconds(1));
  EXPECT_TRUE(kept.after_silence(at(3)).empty());
  EXPECT_EQ(kept.after_resumed(at(3)), std::nullopt) << "it knows the progress";
  EXPECT_EQ(kept.after_resume(at(3)).size(), 1U) << "as after each reconnect";
}

TEST(KeptReports, RepliesThatAreHeldAreNotForAnotherCoordinator) {
  KeptReports kept;
  kept.keep(drain::Reply{.proposal = 1}, Delivery::kHeld, at(1));
  kept.forget_held();
  EXPECT_TRUE(kept.after_silence(at(2)).empty());
  kept.keep(drain::Reply{.proposal = 1}, Delivery::kDropped, at(2));
  EXPECT_TRUE(kept.after_silence(at(3)).empty());
}

TEST(KeptReports, FindingsWaitForACoordinatorAndAreSentOnce) {
  KeptReports kept;
  kept.keep(gate::Finding{.host = "a", .check = "sent"}, Delivery::kSent, at(1));
  for (std::size_t i = 0; i <= kFindingsKept; ++i) {
    kept.keep(gate::Finding{.host = "a", .check = std::to_string(i), .age = seconds(1)},
              Delivery::kDropped, at(2));
  }
  const auto findings = kept.take_findings(at(5));
  ASSERT_EQ(findings.size(), kFindingsKept);
  EXPECT_EQ(findings.front().check, "1") << "the oldest is dropped";
  EXPECT_EQ(findings.front().age, seconds(4));
  EXPECT_TRUE(kept.take_findings(at(6)).empty());
}

// A coordinator ignores the notice of a node that it does not know.
TEST(KeptReports, ANoticeThatNoOrderHasAnsweredIsSentAgainAfterAJoin) {
  KeptReports kept;
  EXPECT_EQ(kept.after_join(at(1)), std::nullopt);
  kept.keep(drain::Notice{.left = seconds(4), .reason = "SIGTERM"}, Delivery::kSent, at(1));
  const auto notice = kept.after_join(at(2));
  ASSERT_TRUE(notice);
  EXPECT_EQ(*notice, (drain::Notice{.left = seconds(3), .reason = "SIGTERM"}));
  EXPECT_EQ(kept.after_join(at(5)), std::nullopt) << "no time is left";
  drain::Order growth;
  growth.notice.departure = drain::Departure{};
  kept.note(growth, at(2));
  EXPECT_TRUE(kept.after_join(at(2))) << "the order is about other nodes";
  drain::Order order;
  order.notice = *notice;
  kept.note(order, at(2));
  EXPECT_EQ(kept.after_join(at(2)), std::nullopt);
}

TEST(KeptReports, TheStepForNodesThatJoinIsKeptBesideANoticeAndUntilTheNextRound) {
  KeptReports kept;
  kept.keep(drain::Notice{.left = seconds(4), .reason = "SIGTERM"}, Delivery::kSent, at(1));
  drain::Order growth;
  growth.notice.departure = drain::Departure{};
  kept.note(growth, at(1));
  auto messages = kept.after_resume(at(2));
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(std::get<drain::Notice>(messages[0]).reason, "SIGTERM");
  EXPECT_TRUE(std::get<drain::Notice>(messages[1]).departure);
  kept.begin_round();
  messages = kept.after_resume(at(2));
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_FALSE(std::get<drain::Notice>(messages[0]).departure);
}

TEST(KeptReports, ProgressIsSentAgainOnceToANewCoordinatorAndNeverToTheSame) {
  KeptReports kept;
  kept.coordinator_replied(1);
  hang::NodeProgress progress{.round = 2, .reporting = 1, .newest = 7};
  progress.idle = seconds(1);
  progress.slowest_idle = seconds(2);
  kept.keep(progress, Delivery::kSent, at(10));
  kept.coordinator_replied(1);
  EXPECT_EQ(kept.after_resumed(at(11)), std::nullopt);
  kept.coordinator_replied(2);
  const auto again = kept.after_resumed(at(15));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->newest, 7);
  EXPECT_EQ(again->idle, seconds(6));
  EXPECT_EQ(again->slowest_idle, seconds(7));
  EXPECT_EQ(kept.after_resumed(at(16)), std::nullopt);
}

TEST(KeptReports, ProgressThatWasMadeWithoutAConnectionIsSentToAnyCoordinator) {
  KeptReports kept;
  kept.coordinator_replied(1);
  kept.keep(hang::NodeProgress{.round = 2, .reporting = 1, .newest = 7}, Delivery::kDropped,
            at(10));
  kept.coordinator_replied(1);
  EXPECT_TRUE(kept.after_resumed(at(11)));
}

}  // namespace
}  // namespace elastic::core
