// Which nodes a coordinator asks to vote, and in which lineage a node votes.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/succession/succession_process.h"

namespace elastic::succession {
namespace {

std::string host(std::uint64_t number) {
  return "10.1." + std::to_string(number / 256) + "." + std::to_string(number % 256);
}

reg::Voter voter(std::uint64_t number) { return {{9, number}, host(number) + ":4711"}; }

std::vector<KnownNode> nodes(std::uint64_t first, std::uint64_t end) {
  std::vector<KnownNode> all;
  for (std::uint64_t i = first; i < end; ++i) {
    all.push_back({.node = voter(i).node,
                   .voter_address = voter(i).address,
                   .host = host(i),
                   .topology = "rack" + std::to_string(i / 64),
                   .is_connected = true});
  }
  return all;
}

std::set<std::string> probed(const std::vector<Action>& actions) {
  std::set<std::string> addresses;
  for (const Send& send : those<Send>(actions)) {
    if (std::holds_alternative<Probe>(decode_frame(send.frame)->body)) {
      addresses.insert(send.address);
    }
  }
  return addresses;
}

// Each answer costs as much as there are candidates.
TEST(SuccessionCandidates, AFewNodesOfDifferentRacksAreProbed) {
  Process process(kSelf, Role::kStandalone);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  const std::set<std::string> asked = probed(process.feed(Nodes{nodes(0, 4096)}));
  EXPECT_EQ(asked.size(), 10U);
  std::set<std::string> racks;
  for (const KnownNode& one : nodes(0, 4096)) {
    if (asked.contains(one.voter_address)) racks.insert(one.topology);
  }
  EXPECT_EQ(racks.size(), 10U);
  // A thousand leave at once, those that were asked included.
  const auto further = probed(process.feed(Nodes{nodes(1000, 4096)}));
  EXPECT_EQ(further.size(), 10U);
  for (const std::string& address : further) EXPECT_FALSE(asked.contains(address));
}

TEST(SuccessionCandidates, ANodeThatDoesNotAnswerMakesPlaceForAnother) {
  Process process(kSelf, Role::kStandalone);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  const auto first = probed(process.feed(Nodes{nodes(0, 40)}));
  const auto later = probed(process.pass(20s));
  std::set<std::string> all = first;
  all.insert(later.begin(), later.end());
  EXPECT_EQ(all.size(), 40U) << "none answers, so all are tried in turn";
}

TEST(SuccessionCandidates, ASecondNodeOfAHostIsTriedWhenTheFirstDoesNotAnswer) {
  Process process(kSelf, Role::kStandalone);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  auto two = nodes(0, 2);
  for (KnownNode& one : two) one.host = "host";
  EXPECT_EQ(probed(process.feed(Nodes{two})), std::set{two[0].voter_address});
  EXPECT_TRUE(probed(process.pass(10s)).contains(two[1].voter_address));
}

TEST(SuccessionCandidates, ANodeOfAnotherRecordFormatDoesNotVote) {
  Process process(kSelf, Role::kStandalone);
  const auto start = process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  const auto asked = those<Send>(process.feed(Nodes{nodes(0, 3)}));
  ASSERT_EQ(asked.size(), 3U);
  const reg::LineageId lineage = *lineage_of(*decode_frame(asked[0].frame));
  process.receive(voter(0), ProbeReply{lineage});
  process.receive(voter(1), ProbeReply{lineage});
  const auto refused = process.receive(voter(2), ProbeReply{lineage, record_format() + 1});
  EXPECT_EQ(those<Log>(refused).size(), 1U);
  EXPECT_TRUE(those<BeginRecord>(refused).empty());
  EXPECT_TRUE(process.receive(voter(2), ProbeReply{lineage, record_format() + 1}).empty());
  EXPECT_EQ(those<BeginRecord>(process.receive(voter(2), ProbeReply{lineage})).size(), 1U);
}

// ---- Lineages.

// The record of the former job is on its way, and names this node.
TEST(SuccessionLineage, AProcessThatJoinsAnotherLineageIgnoresTheOneThatItLeft) {
  const reg::LineageId next{8, 8};
  Process process(kSelf, Role::kAgent, next);
  const reg::Record former = record_of_three();
  EXPECT_TRUE(process.receive(kFormer, reg::Accept{{former, true}}).empty());
  EXPECT_TRUE(process.receive(kOther, reg::Ask{1, 2, {former, true}}).empty());
  EXPECT_TRUE(process.receive(kOther, Probe{kLineage}).empty());
  reg::Record record = former;
  record.lineage = next;
  const auto accepted = process.receive(
      kFormer, reg::Message{next, kFormer.node, kSelf.node, reg::Accept{{record, true}}});
  EXPECT_EQ(those<Send>(accepted).size(), 1U);
}

TEST(SuccessionLineage, AnotherLineageOfTheSameCoordinatorDoesNotReplaceTheVoters) {
  Process process(kSelf);
  Incumbent incumbent = former_coordinator();
  process.feed(Informed{incumbent});
  incumbent.lineage = {8, 8};
  incumbent.voters = {kFormer};
  process.feed(Informed{incumbent});
  EXPECT_EQ(process.machine().incumbent()->voters, record_of_three().voters);
}

// It was lost, and is elected again without this node's vote.
TEST(SuccessionLineage, ACoordinatorThatIsElectedAgainIsNotLostInItsLaterTerm) {
  Process process(kSelf);
  process.feed(Informed{former_coordinator()});
  process.receive(kFormer, reg::Accept{{record_of_three(), true}});
  process.feed(IncumbentLost{});
  ASSERT_TRUE(process.machine().job_register().has_lost_incumbent());
  reg::Record again = record_of_three();
  again.newness = {2, 1};
  process.receive(kFormer, reg::Accept{{again, true}});
  EXPECT_FALSE(process.machine().job_register().has_lost_incumbent());
  // Unless its session does not come back.
  process.pass(1s);
  EXPECT_TRUE(process.machine().job_register().has_lost_incumbent());
}

// A separate coordinator begins before it knows the job's settings.
TEST(SuccessionLineage, TheTimingsOfTheJobDecideWhenTheAuthorityEnds) {
  Process process(kSelf);
  elect(&process);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", false});
  process.feed(Timings{1s, 600s});
  EXPECT_TRUE(those<Expired>(process.pass(599s)).empty());
  EXPECT_EQ(those<Expired>(process.pass(60s)).size(), 1U);
}

std::set<std::string> announced(const std::vector<Action>& actions) {
  std::set<std::string> addresses;
  for (const Send& send : those<Send>(actions)) {
    if (std::holds_alternative<Announce>(decode_frame(send.frame)->body)) {
      addresses.insert(send.address);
    }
  }
  return addresses;
}

// Thousands of nodes resume at the same time.
TEST(SuccessionAnnouncement, FewNodesAreDialedAtOnceAndAllOfThemSoon) {
  reg::Record record = record_of_three();
  JobRecord job{.job_id = "job", .settings = {}, .state = {}, .nodes = {}};
  for (std::uint64_t i = 0; i < 4096; ++i) job.nodes.push_back({voter(i).node, voter(i).address});
  record.content.bytes = encode_record(job);
  Process process(kSelf);
  elect(&process, record);
  std::set<std::string> all = announced(process.feed(CoordinatorStarted{"10.0.0.3:29400", false}));
  EXPECT_EQ(all.size(), 65U) << "64, and the former coordinator";
  const std::set<std::string> next = announced(process.pass(10ms));
  EXPECT_EQ(next.size(), 64U);
  all.insert(next.begin(), next.end());
  all.merge(announced(process.pass(1s)));
  EXPECT_EQ(all.size(), 4097U);
}

TEST(SuccessionAnnouncement, ANodeThatHasResumedIsNotDialed) {
  reg::Record record = record_of_three();
  JobRecord job{.job_id = "job", .settings = {}, .state = {}, .nodes = {}};
  for (std::uint64_t i = 0; i < 100; ++i) job.nodes.push_back({voter(i).node, voter(i).address});
  record.content.bytes = encode_record(job);
  Process process(kSelf);
  elect(&process, record);
  const auto first = announced(process.feed(CoordinatorStarted{"10.0.0.3:29400", false}));
  std::set<std::string> all = announced(process.feed(Nodes{nodes(0, 100)}));
  all.merge(announced(process.pass(5ms)));
  all.merge(announced(process.pass(100ms)));
  for (const KnownNode& one : nodes(0, 100)) EXPECT_FALSE(all.contains(one.voter_address));
}

// The remedy would be about its ports.
TEST(SuccessionCandidates, ANodeThatHasLeftIsNotCalledUnreachable) {
  Process process(kSelf, Role::kStandalone);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  std::vector<KnownNode> two = nodes(0, 2);
  process.feed(Nodes{two});
  EXPECT_EQ(process.machine().unreached_voters(), voter(0).address + ", " + voter(1).address);
  two[0].has_left = true;
  process.feed(Nodes{two});
  EXPECT_EQ(process.machine().unreached_voters(), voter(1).address);
}

}  // namespace
}  // namespace elastic::succession
