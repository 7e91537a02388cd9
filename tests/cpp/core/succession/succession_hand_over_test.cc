// A coordinator that ends in order, and which node succeeds it.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/succession/succession_process.h"

namespace elastic::succession {
namespace {

const reg::Voter kThird{{4, 4}, "10.0.0.4:4711"};

KnownNode known(const reg::Voter& voter, const std::string& host) {
  return {.node = voter.node, .voter_address = voter.address, .host = host, .is_connected = true};
}

// A coordinator whose job has one voter, since its nodes are on fewer than three hosts.
class OneVoter {
 public:
  OneVoter() {
    process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
    process.feed(Propose{1, record_of_three().content, 1});
  }
  reg::LineageId lineage() { return process.machine().incumbent()->lineage; }
  void answer(const reg::Voter& node) { process.receive(node, ProbeReply{lineage()}); }

  Process process{kSelf};
};

TEST(SuccessionHandOver, WithOneVoterAnyNodeThatAnswersIsMadeAVoterAndSucceeds) {
  OneVoter one;
  ASSERT_EQ(one.process.machine().incumbent()->voters, std::vector{kSelf});
  // Of one host, so that it does not vote.
  one.process.feed(Nodes{{known(kSelf, "host"), known(kOther, "host")}});
  one.answer(kOther);
  const auto records = proposed(one.process.feed(Resign{}));
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].voters, std::vector{kOther});
  EXPECT_EQ(records[0].previous_voters, std::vector{kSelf});
}

TEST(SuccessionHandOver, ANodeOnAnotherHostSucceedsRatherThanOneOfThisHost) {
  OneVoter one;
  one.process.feed(Nodes{{known(kSelf, "a"), known(kOther, "a"), known(kThird, "b")}});
  one.answer(kOther);
  one.answer(kThird);
  const auto records = proposed(one.process.feed(Resign{}));
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].voters, std::vector{kThird});
}

TEST(SuccessionHandOver, TheHostOfACoordinatorWhoseNodeHasLeftIsKnown) {
  OneVoter one;  // at 10.0.0.3
  one.process.feed(Nodes{{known(kOther, "10.0.0.3"), known(kThird, "10.0.0.4")}});
  one.answer(kOther);
  one.answer(kThird);
  EXPECT_EQ(proposed(one.process.feed(Resign{})).at(0).voters, std::vector{kThird});
}

TEST(SuccessionHandOver, AMemberSucceedsRatherThanASpare) {
  OneVoter one;
  KnownNode spare = known(kOther, "b");
  spare.kind = reg::VoterCandidate::Kind::kSpare;
  one.process.feed(Nodes{{known(kSelf, "a"), spare, known(kThird, "a")}});
  one.answer(kOther);
  one.answer(kThird);
  EXPECT_EQ(proposed(one.process.feed(Resign{})).at(0).voters, std::vector{kOther})
      << "this host may be about to end";
  OneVoter other;
  other.process.feed(Nodes{{known(kSelf, "a"), spare, known(kThird, "c")}});
  other.answer(kThird);
  EXPECT_EQ(proposed(other.process.feed(Resign{})).at(0).voters, std::vector{kThird});
}

TEST(SuccessionHandOver, ANodeThatOpensItsPortNowIsWaitedFor) {
  OneVoter one;
  EXPECT_TRUE(one.process.feed(Resign{.awaits_nodes = true}).empty());
  one.process.pass(1s);
  one.process.feed(Nodes{{known(kSelf, "a"), known(kOther, "b")}});
  const auto records = proposed(one.process.receive(kOther, ProbeReply{one.lineage()}));
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].voters, std::vector{kOther});
}

TEST(SuccessionHandOver, WithoutANodeThatAnswersItEndsAfterALimit) {
  OneVoter one;
  one.process.feed(Resign{.awaits_nodes = true});
  EXPECT_TRUE(those<StopCoordinator>(one.process.pass(1900ms)).empty());
  const auto stopped = those<StopCoordinator>(one.process.pass(200ms));
  ASSERT_EQ(stopped.size(), 1U);
  EXPECT_FALSE(stopped[0].successor);
}

TEST(SuccessionHandOver, WithoutANodeThatMayAnswerItEndsAtOnce) {
  OneVoter one;
  EXPECT_EQ(those<StopCoordinator>(one.process.feed(Resign{})).size(), 1U);
  OneVoter other;
  other.process.feed(Resign{.awaits_nodes = true});
  EXPECT_EQ(those<StopCoordinator>(other.process.feed(Resign{.awaits_nodes = false})).size(), 1U);
}

// It has not accepted the record that names it: nobody else can be the coordinator.
TEST(SuccessionHandOver, TheNextNodeThatAnswersSucceedsWhenTheFirstIsLost) {
  OneVoter one;
  one.process.feed(Nodes{{known(kSelf, "a"), known(kOther, "b")}});
  one.answer(kOther);
  ASSERT_EQ(proposed(one.process.feed(Resign{})).size(), 1U);
  one.process.feed(Nodes{{known(kSelf, "a"), known(kThird, "b")}});
  const auto records = proposed(one.process.receive(kThird, ProbeReply{one.lineage()}));
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().voters, std::vector{kThird});
  EXPECT_EQ(records.back().previous_voters, std::vector{kSelf});
}

// The former coordinator of a job with one voter has no port.
TEST(SuccessionHandOver, TheFormerCoordinatorIsToldOnItsConnectionWhereItsClientsGo) {
  Process process(kSelf);
  reg::Record record = record_of_three();
  record.proposer = {kFormer.node, ""};
  record.voters = {kSelf};
  process.receive(kFormer, reg::Accept{{record, true}});
  const auto elected = process.receive(kFormer, reg::HandOver{2, {record, true}});
  ASSERT_EQ(those<StartCoordinator>(elected).size(), 1U);
  const auto sent = those<Send>(process.feed(CoordinatorStarted{"10.0.0.3:29400", false}));
  EXPECT_TRUE(std::any_of(sent.begin(), sent.end(), [](const Send& one) {
    const auto frame = decode_frame(one.frame);
    return frame->to == kFormer.node && std::holds_alternative<Announce>(frame->body) &&
           one.connection == 1 && one.address.empty();
  }));
}

// They were sent before the coordinator's thread knew.
TEST(SuccessionHandOver, NodesOfACoordinatorThatHasStoppedAreNotProbed) {
  Process process(kSelf);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  ASSERT_EQ(those<StopCoordinator>(process.feed(Resign{})).size(), 1U);
  EXPECT_TRUE(process.feed(Nodes{{known(kOther, "host")}}).empty());
  EXPECT_FALSE(process.machine().next_deadline());
}

}  // namespace
}  // namespace elastic::succession
