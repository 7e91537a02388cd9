// A coordinator that ends in order, and one that was asked to take a job over.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/rendezvous/rendezvous_machine.h"
#include "core/session/coordinator_loss.h"
#include "core/succession/succession_process.h"
#include "support/node_info.h"

namespace elastic::succession {
namespace {

using core::OfferedJob;

KnownNode known(const reg::Voter& voter, const std::string& host) {
  return {.node = voter.node, .voter_address = voter.address, .host = host, .is_connected = true};
}

TEST(SuccessionHandOver, WithOneVoterAnyNodeThatAnswersIsMadeAVoterAndSucceeds) {
  Process process(kSelf);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  process.feed(Propose{1, record_of_three().content});
  ASSERT_EQ(process.machine().incumbent()->voters, std::vector{kSelf});
  const reg::LineageId lineage = process.machine().incumbent()->lineage;
  // Of one host, so that it does not vote.
  process.feed(Nodes{{known(kSelf, "host"), known(kOther, "host")}});
  process.receive(kOther, ProbeReply{lineage});
  const auto records = proposed(process.feed(Resign{}));
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].voters, std::vector{kOther});
  EXPECT_EQ(records[0].previous_voters, std::vector{kSelf});
}

TEST(SuccessionHandOver, ACoordinatorThatTookAJobOverBeginsTheLineageThatItWasGiven) {
  Process process(kSelf);
  const auto started = process.feed(CoordinatorStarted{"10.0.0.3:29400", true, {8, 9}, 4});
  const auto announced = those<AnnounceAtEndpoints>(started);
  ASSERT_EQ(announced.size(), 1U);
  EXPECT_EQ(announced[0].incumbent.lineage, (reg::LineageId{8, 9}));
  EXPECT_EQ(announced[0].incumbent.term, 4U);
  EXPECT_EQ(announced[0].incumbent.address, "10.0.0.3:29400");
  process.feed(Propose{1, record_of_three().content});
  const auto& record = process.machine().job_register().known()->record;
  EXPECT_EQ(record.lineage, (reg::LineageId{8, 9}));
  EXPECT_EQ(record.newness.term, 4U);
}

TEST(SuccessionHandOver, ACoordinatorThatGivesTheJobBackFollowsTheOneThatRunsIt) {
  Process process(kSelf);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true, {8, 9}, 4});
  EXPECT_EQ(those<StopCoordinator>(process.feed(Resign{})).size(), 1U);
  EXPECT_FALSE(process.machine().incumbent());
  const Incumbent other{
      .lineage = {8, 9}, .term = 3, .node = kOther.node, .address = "10.0.0.4:29400", .voters = {}};
  process.feed(Informed{other});
  EXPECT_EQ(process.machine().incumbent(), other) << "though its term is lower";
}

// They were sent before the coordinator's thread knew.
TEST(SuccessionHandOver, NodesOfACoordinatorThatHasStoppedAreNotProbed) {
  Process process(kSelf);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  ASSERT_EQ(those<StopCoordinator>(process.feed(Resign{})).size(), 1U);
  EXPECT_TRUE(process.feed(Nodes{{known(kOther, "host")}}).empty());
  EXPECT_FALSE(process.machine().next_deadline());
}

// The job that it would dissolve for is its own, to which a process at the endpoint directs nodes.
TEST(SuccessionHandOver, ACoordinatorThatTookAJobOverGivesWayToALaterOneOnly) {
  Process process(kSelf);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true, {8, 9}, 4});
  Incumbent other = *process.machine().incumbent();
  EXPECT_TRUE(process.feed(Met{other}).empty()) << "it is its own";
  other.node = kOther.node;
  other.term = 3;
  EXPECT_TRUE(process.feed(Met{other}).empty());
  other.term = 5;
  const auto stopped = those<StopCoordinator>(process.feed(Met{other}));
  ASSERT_EQ(stopped.size(), 1U);
  EXPECT_EQ(stopped[0].successor, other);
}

// ---- The member that was asked.

// The record of a job that these nodes have joined.
StartCoordinator offer_of(const std::vector<NodeId>& nodes) {
  JobSettings settings;
  settings.min_nodes = 1;
  settings.max_nodes = 2;
  core::RendezvousMachine machine(settings, Instant{}, Duration::zero());
  std::vector<core::RendezvousAction> actions;
  for (const NodeId& id : nodes) {
    machine.step(rdzv::Join{support::node_info(id.low), settings}, Instant{}, &actions);
  }
  return {.lineage = {8, 9},
          .term = 4,
          .record = {"job", settings, machine.encode(), {}},
          .lost_incumbent = {},
          .is_recorded = false};
}

TEST(OfferedJob, IsAloneIfTheRecordHasNoOtherNode) {
  EXPECT_TRUE(OfferedJob::create(offer_of({{1, 1}}), {1, 1}, Instant{})->is_alone());
  EXPECT_TRUE(OfferedJob::create(offer_of({}), {1, 1}, Instant{})->is_alone());
  EXPECT_FALSE(OfferedJob::create(offer_of({{1, 1}, {1, 2}}), {1, 1}, Instant{})->is_alone());
  EXPECT_FALSE(OfferedJob::create(offer_of({{1, 2}}), {1, 1}, Instant{})->is_alone());
}

TEST(OfferedJob, IsAnErrorIfItsRecordCannotBeContinued) {
  StartCoordinator damaged = offer_of({{1, 1}});
  damaged.record.state.pop_back();
  EXPECT_FALSE(OfferedJob::create(damaged, {1, 1}, Instant{}).ok());
}

}  // namespace
}  // namespace elastic::succession
