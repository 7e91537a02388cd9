// A member that is asked to run the job of a coordinator that ends: when it runs it, and when not.

#include "core/session/coordinator_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "core/register/register_codec.h"
#include "core/succession/job_record.h"

namespace elastic::core {
namespace {

using Order = HandOverMember::Order;
using succession::Successor;
using testing::HasSubstr;

constexpr Successor kJob{{8, 9}, 3};
constexpr bool kByCoordinator = true;
constexpr bool kByAnother = false;

std::string record_bytes() {
  return succession::encode_record({.job_id = "job", .settings = {}, .state = "x", .nodes = {}});
}

session::TakeOver whole_offer() {
  const std::string record = record_bytes();
  return {.lineage = kJob.lineage, .term = kJob.term, .size = record.size(), .piece = record};
}

succession::Incumbent incumbent(const Successor& one, const std::string& address = "b:1") {
  return {
      .lineage = one.lineage, .term = one.term, .node = {1, 1}, .address = address, .voters = {}};
}

session::TakenOver reply_of(const HandOverMember::Answer& answer) {
  const auto* reply = std::get_if<session::TakenOver>(&answer);
  EXPECT_NE(reply, nullptr);
  return reply == nullptr ? session::TakenOver{} : *reply;
}

TEST(HandOverMember, TheRecordArrivesInPiecesAndTheReplyIsRepeated) {
  HandOverMember member;
  session::TakeOver offer = whole_offer();
  const std::string record = offer.piece;
  offer.piece = record.substr(0, 5);
  EXPECT_TRUE(reply_of(member.asked(offer, {})).wants_more);
  offer.begin = 6;
  EXPECT_THAT(reply_of(member.asked(offer, {})).error, HasSubstr("a piece"));
  offer.begin = 0;  // the coordinator begins again, on another connection
  EXPECT_TRUE(reply_of(member.asked(offer, {})).wants_more);
  offer.begin = 5;
  offer.piece = record.substr(5);
  const auto answer = member.asked(offer, {});
  const auto* start = std::get_if<succession::StartCoordinator>(&answer);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->term, kJob.term);
  EXPECT_EQ(start->record.job_id, "job");
  EXPECT_FALSE(start->is_recorded);
  EXPECT_EQ(member.job(), std::nullopt) << "until the owner keeps it";
  member.kept(kJob, false);
  EXPECT_TRUE(std::holds_alternative<HandOverMember::Repeat>(member.asked(offer, {})));
}

TEST(HandOverMember, ANodeThatCannotRunTheJobSaysWhy) {
  session::TakeOver offer = whole_offer();
  HandOverMember member;
  EXPECT_THAT(reply_of(member.asked(offer, {.is_ending = true})).error, HasSubstr("ends, too"));
  EXPECT_THAT(reply_of(member.asked(offer, {.has_lineage = true})).error, HasSubstr("lineage"));
  offer.size = reg::kContentBytesMax + 1;
  EXPECT_THAT(reply_of(member.asked(offer, {})).error, HasSubstr("too large"));
  offer.piece[0] = '\xff';
  offer.size = offer.piece.size();
  EXPECT_FALSE(reply_of(member.asked(offer, {})).error.empty());
}

// A member that keeps the job, or runs it without a confirmation.
struct OrderCase {
  const char* what;
  std::function<Order(HandOverMember*)> event;
  Order kept;
  Order running;
  bool is_settled;  // while it runs
};

std::vector<OrderCase> order_cases() {
  const auto directed = [](const Successor& to, bool is_from_coordinator) {
    return [=](HandOverMember* member) {
      return member->directed(incumbent(to), is_from_coordinator).order;
    };
  };
  const Successor earlier{kJob.lineage, 2}, later{kJob.lineage, 4}, another{{7, 7}, 9};
  return {
      {"named", directed(kJob, kByCoordinator), Order::kRun, Order::kRun, false},
      {"named by a standby", directed(kJob, kByAnother), Order::kRun, Order::kRun, false},
      {"another one is named", directed(earlier, kByCoordinator), Order::kDrop, Order::kNone, true},
      {"a later one runs", directed(later, kByAnother), Order::kDrop, Order::kNone, true},
      {"one of before", directed(earlier, kByAnother), Order::kNone, Order::kNone, false},
      {"of another job", directed(another, kByAnother), Order::kNone, Order::kNone, false},
      {"the same process again", [](auto* one) { return one->connected(true); }, Order::kNone,
       Order::kNone, false},
      {"another coordinator", [](auto* one) { return one->connected(false); }, Order::kDrop,
       Order::kNone, true},
      {"closed", [](auto* one) { return one->closed(); }, Order::kLogWait, Order::kNone, false},
      {"closed after Leaving",
       [](auto* one) {
         one->coordinator_leaves();
         return one->closed();
       },
       Order::kDrop, Order::kNone, true},
      {"closed by a coordinator that only its predecessor left",
       [](auto* one) {
         one->coordinator_leaves();
         one->connected(true);
         return one->closed();
       },
       Order::kLogWait, Order::kNone, false},
  };
}

TEST(HandOverMember, RunsTheJobWhenItIsNamedAndDropsItWhenItWillNotBe) {
  for (const OrderCase& one : order_cases()) {
    SCOPED_TRACE(one.what);
    HandOverMember keeper;
    keeper.kept(kJob, false);
    EXPECT_EQ(one.event(&keeper), one.kept);
    EXPECT_EQ(keeper.job(), kJob) << "until settle()";
    EXPECT_EQ(keeper.begin(), kJob);
    EXPECT_EQ(keeper.begin(), std::nullopt) << "once";
    HandOverMember runner;
    runner.kept(kJob, true);
    EXPECT_EQ(runner.begin(), std::nullopt);
    EXPECT_EQ(one.event(&runner), one.running);
    EXPECT_EQ(runner.job().has_value(), !one.is_settled);
    HandOverMember other;
    const Order order = one.event(&other);
    EXPECT_EQ(order, Order::kNone);
    EXPECT_EQ(other.begin(), std::nullopt);
  }
}

TEST(HandOverMember, TheWaitIsLoggedOnceUntilACoordinatorReplies) {
  HandOverMember member;
  member.kept(kJob, false);
  EXPECT_EQ(member.closed(), Order::kLogWait);
  EXPECT_EQ(member.closed(), Order::kNone);
  member.connected(true);
  EXPECT_EQ(member.closed(), Order::kLogWait);
  member.settle();
  EXPECT_EQ(member.closed(), Order::kNone);
}

TEST(HandOverMember, GoesToTheCoordinatorThatWasNamedUntilOneReplies) {
  HandOverMember member;
  EXPECT_EQ(member.directed(incumbent({{8, 9}, 3}, "b:1"), kByCoordinator).address, "b:1");
  EXPECT_EQ(member.directed(incumbent({{8, 9}, 2}, "old:1"), kByAnother).address, "b:1");
  EXPECT_EQ(member.named(), kJob);
  member.connected(false);
  EXPECT_EQ(member.named(), std::nullopt);
}

Successor successor(std::uint64_t term, std::uint64_t lineage = 8) { return {{lineage, 9}, term}; }

TEST(NamedSuccessor, IsTheOneThatWasNamedLast) {
  NamedSuccessor named;
  EXPECT_EQ(named.successor(), std::nullopt);
  EXPECT_EQ(named.note(successor(2), "b:1", kByAnother), "b:1");
  EXPECT_EQ(named.note(successor(1, 7), "c:1", kByAnother), "c:1");
  EXPECT_EQ(named.successor(), successor(1, 7));
  EXPECT_EQ(named.note(successor(3), "d:1", kByCoordinator), "d:1");
  EXPECT_EQ(named.note(successor(2), "b:1", kByCoordinator), "b:1");
  EXPECT_EQ(named.successor(), successor(2));
  named.reset();
  EXPECT_EQ(named.successor(), std::nullopt);
}

// A process that had coordinated the job before directs to its own successor of then.
TEST(NamedSuccessor, IsNotReplacedByAnOldOneOfAThirdProcess) {
  NamedSuccessor named;
  named.note(successor(3), "b:1", kByCoordinator);
  EXPECT_EQ(named.note(successor(2), "old:1", kByAnother), "b:1");
  EXPECT_EQ(named.successor(), successor(3));
  EXPECT_EQ(named.note({}, "", kByAnother), "");
  EXPECT_EQ(named.successor(), successor(3));
  // The job may run elsewhere: the node looks there, and still knows what the coordinator said.
  EXPECT_EQ(named.note(successor(9, 7), "c:1", kByAnother), "c:1");
  EXPECT_EQ(named.successor(), successor(3));
}

TEST(NamedSuccessor, IsReplacedByALaterOneOfTheSameJob) {
  NamedSuccessor named;
  named.note(successor(3), "b:1", kByCoordinator);
  EXPECT_EQ(named.note(successor(4), "d:1", kByAnother), "d:1");
  EXPECT_EQ(named.successor(), successor(4));
}

}  // namespace
}  // namespace elastic::core
