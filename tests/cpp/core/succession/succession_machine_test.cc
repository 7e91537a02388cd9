// The succession machine of one process, with the frames of the others written by the test. Whole
// jobs are simulated in sim/succession_sim_test.cc.

#include "core/succession/voter_keeper.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/succession/meeting.h"
#include "core/succession/succession_process.h"

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

TEST(SuccessionMachine, ARoundBeforeTheNodesHaveResumedKeepsTheSuccessorAsAVoter) {
  Process process(kSelf);
  auto actions = elect(&process);
  ASSERT_EQ(those<StartCoordinator>(actions).size(), 1U);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", false});
  reg::Content round = record_of_three().content;
  round.round = 5;
  for (Action& action : process.feed(Propose{1, round, 2})) actions.push_back(std::move(action));
  // The answers of the other voter are enough.
  const auto records = proposed(actions);
  ASSERT_FALSE(records.empty());
  std::vector<InForce> in_force;
  for (const reg::Record& record : records) {
    EXPECT_TRUE(reg::contains(record.voters, kSelf.node));
    const reg::Accepted accepted{.newness = record.newness, .is_accepted = true};
    for (const InForce& one : those<InForce>(process.receive(kOther, accepted))) {
      in_force.push_back(one);
    }
  }
  ASSERT_EQ(in_force.size(), 1U);
  EXPECT_EQ(in_force.front().number, 1U);
}

// Its node has left, so that the record does not list it.
TEST(SuccessionMachine, TheFormerCoordinatorIsSentTheAddressOfTheNewOne) {
  Process process(kSelf);
  elect(&process);
  const auto actions = process.feed(CoordinatorStarted{"10.0.0.3:29400", false});
  int announced = 0;
  for (const Send& send : those<Send>(actions)) {
    const auto frame = decode_frame(send.frame);
    const auto* announce = std::get_if<Announce>(&frame->body);
    if (announce == nullptr || send.address != kFormer.address) continue;
    ++announced;
    EXPECT_EQ(announce->incumbent.address, "10.0.0.3:29400");
  }
  EXPECT_EQ(announced, 1);
}

TEST(SuccessionMachine, AnElectedCoordinatorThatReachesItsVotersReportsNoLossOfTheMajority) {
  Process process(kSelf);
  auto actions = elect(&process);
  for (Action& action : process.feed(CoordinatorStarted{"10.0.0.3:29400", false})) {
    actions.push_back(std::move(action));
  }
  for (Action& action : process.pass(500ms)) actions.push_back(std::move(action));
  for (const Log& log : those<Log>(actions)) {
    EXPECT_EQ(log.message.find("majority"), std::string::npos) << log.message;
  }
}

Incumbent of_another_job(std::uint64_t term, std::uint64_t lineage = 9) {
  return {.lineage = {lineage, 9},
          .term = term,
          .node = {8, 8},
          .address = "10.0.0.8:29400",
          .voters = {}};
}

// The other voter resumes at the coordinator of the process, and accepts what it proposes.
void accept_all(Process* process, const std::vector<Action>& first) {
  std::vector<reg::Record> records = proposed(first);
  while (!records.empty()) {
    const reg::Accepted accepted{.newness = records.back().newness, .is_accepted = true};
    records.pop_back();
    for (reg::Record& next : proposed(process->receive(kOther, accepted))) {
      records.push_back(std::move(next));
    }
  }
}

std::vector<Action> start_elected(Process* process) {
  accept_all(process, elect(process));
  const auto actions = process->feed(CoordinatorStarted{"10.0.0.3:29400", false});
  accept_all(process, actions);
  accept_all(process, process->feed(Nodes{{{.node = kSelf.node,
                                            .voter_address = kSelf.address,
                                            .host = "10.0.0.3",
                                            .topology = {},
                                            .is_connected = true},
                                           {.node = kOther.node,
                                            .voter_address = kOther.address,
                                            .host = "10.0.0.2",
                                            .topology = {},
                                            .is_connected = true}}}));
  accept_all(process, process->receive(kOther, ProbeReply{kLineage}));
  return actions;
}

TEST(SuccessionMachine, AnElectedCoordinatorAnnouncesItselfUntilItIsAtTheEndpoint) {
  Process process(kSelf);
  const auto actions = start_elected(&process);
  const auto announced = those<AnnounceAtEndpoints>(actions);
  ASSERT_EQ(announced.size(), 1U);
  EXPECT_EQ(announced[0].incumbent.address, "10.0.0.3:29400");
  EXPECT_EQ(announced[0].incumbent.term, 2U);
  EXPECT_EQ(those<AnnounceAtEndpoints>(process.pass(3 * kAnnounceInterval)).size(), 3U);
  process.feed(EndpointsAreHere{});
  EXPECT_TRUE(those<AnnounceAtEndpoints>(process.pass(3 * kAnnounceInterval)).empty());
}

TEST(SuccessionMachine, AnElectedCoordinatorGoesOnWhenItMeetsAnEarlierOne) {
  Process process(kSelf);
  elect(&process);
  process.feed(CoordinatorStarted{"10.0.0.3:29400", false});
  for (const Incumbent& other : {Incumbent{}, of_another_job(1), of_another_job(2)}) {
    EXPECT_TRUE(those<Displaced>(process.feed(Met{other})).empty()) << other.term;
  }
  EXPECT_TRUE(process.machine().is_coordinator());
}

TEST(SuccessionMachine, ACoordinatorDissolvesWhenItMeetsOneThatGoesOn) {
  for (const Incumbent& other : {of_another_job(3), of_another_job(2, 1)}) {
    Process process(kSelf);
    elect(&process);
    process.feed(CoordinatorStarted{"10.0.0.3:29400", false});
    const auto displaced = those<Displaced>(process.feed(Met{other}));
    ASSERT_EQ(displaced.size(), 1U);
    EXPECT_EQ(displaced[0].by, other);
    EXPECT_FALSE(process.machine().next_deadline());
    EXPECT_TRUE(process.feed(Tick{}).empty());
    EXPECT_TRUE(process.receive(kOther, Probe{kLineage}).empty()) << "it votes no more";
  }
  // One that has formed no round yet.
  Process fresh(kSelf);
  fresh.feed(CoordinatorStarted{"10.0.0.3:29400", true});
  EXPECT_EQ(those<Displaced>(fresh.feed(Met{of_another_job(2)})).size(), 1U);
}

TEST(SuccessionMachine, AResultIsNeitherAnnouncedNorDissolved) {
  Process process(kSelf);
  start_elected(&process);
  reg::Content result = record_of_three().content;
  result.is_result = true;
  accept_all(&process, process.feed(Propose{1, result, 2}));
  ASSERT_TRUE(process.machine().job_register().known()->record.content.is_result);
  ASSERT_TRUE(process.machine().job_register().known()->is_in_force);
  EXPECT_TRUE(those<AnnounceAtEndpoints>(process.pass(2 * kAnnounceInterval)).empty());
  EXPECT_TRUE(those<Displaced>(process.feed(Met{of_another_job(3)})).empty());
}

reg::Content content_of_round(std::uint64_t round) {
  reg::Content content = record_of_three().content;
  content.round = round;
  return content;
}

TEST(SuccessionMachine, AProposalOfAnEarlierTermOfThisProcessIsIgnored) {
  Process process(kSelf);
  start_elected(&process);
  EXPECT_TRUE(proposed(process.feed(Propose{1, content_of_round(4), 1})).empty());
  accept_all(&process, process.feed(Propose{1, content_of_round(5), 2}));
  EXPECT_EQ(process.machine().job_register().known()->record.content.round, 5U);
}

TEST(SuccessionMachine, AProposalThatReplacesOneUnderWayFollowsIt) {
  Process process(kSelf);
  start_elected(&process);
  const auto first = process.feed(Propose{1, content_of_round(4), 2});
  EXPECT_TRUE(proposed(process.feed(Propose{2, content_of_round(5), 2})).empty());
  accept_all(&process, first);
  const auto& known = process.machine().job_register().known();
  EXPECT_EQ(known->record.content.round, 5U);
  EXPECT_TRUE(known->is_in_force);
}

TEST(SuccessionMachine, AProcessThatCoordinatesNothingMeetsNobody) {
  Process process(kSelf);
  EXPECT_TRUE(process.feed(Met{of_another_job(3)}).empty());
}

// This process has accepted the record of three, and its session has lost the coordinator.
void strand(Process* process) {
  process->feed(Informed{former_coordinator()});
  process->receive(kFormer, reg::Accept{{record_of_three(), true}});
  process->feed(IncumbentLost{});
}

TEST(SuccessionMachine, AVoterWithoutAMajorityNamesTheVoters) {
  Process process(kSelf);
  strand(&process);
  std::string text;
  for (const Log& log : those<Log>(process.pass(3s))) text += log.message;
  EXPECT_NE(text.find("no majority of the job's voters answers (10.0.0.1:4711, 10.0.0.2:4711, "
                      "10.0.0.3:4711)"),
            std::string::npos)
      << text;
}

TEST(SuccessionMachine, AProcessThatBelongsToAnotherLineageAnswersNoProbe) {
  Process process(kSelf);
  const reg::LineageId other{8, 8};
  EXPECT_EQ(those<Send>(process.receive(kOther, Probe{other})).size(), 1U) << "it has joined none";
  strand(&process);
  EXPECT_TRUE(those<Send>(process.receive(kOther, Probe{other})).empty());
  EXPECT_EQ(those<Send>(process.receive(kOther, Probe{kLineage})).size(), 1U);
}

TEST(SuccessionMachine, AReplyGoesToNoConnectionThatHasEnded) {
  Process process(kSelf);
  EXPECT_EQ(those<Send>(process.receive(kOther, Probe{kLineage})).front().connection, 1U);
  process.feed(ConnectionEnded{1});
  strand(&process);  // asks the other voter later, at its address
  for (const Send& send : those<Send>(process.pass(500ms))) EXPECT_EQ(send.connection, 0U);
}

TEST(SuccessionMachine, AWitnessThatAnswersNoProbeCountsAsUnreachableUntilItAnswers) {
  const std::string address = "10.0.0.9:29500";
  const reg::Voter witness{{9, 9}, ""};
  Process process({{4, 4}, ""}, Role::kStandalone);
  process.feed(CoordinatorStarted{"10.0.0.4:29400", true});
  const auto probes = those<Send>(process.feed(Witnesses{{address}}));
  ASSERT_EQ(probes.size(), 1U);
  const reg::LineageId lineage = *lineage_of(*decode_frame(probes.front().frame));
  process.receive(witness, ProbeReply{kLineage}, address);  // of the job that was there before
  EXPECT_EQ(process.machine().unreached_witnesses(), address);
  process.receive(witness, ProbeReply{lineage}, address);
  EXPECT_EQ(process.machine().unreached_witnesses(), "");
  process.pass(900ms);
  EXPECT_EQ(process.machine().unreached_witnesses(), "");
  process.pass(400ms);
  EXPECT_EQ(process.machine().unreached_witnesses(), address);
  process.receive(witness, ProbeReply{lineage}, address);
  EXPECT_EQ(process.machine().unreached_witnesses(), "");
}

// Any node may name one in its hello, and each is dialed without end.
TEST(SuccessionMachine, OnlyFourWitnessesAreProbed) {
  const std::string real = "10.0.0.9:29500";
  Process process({{4, 4}, ""}, Role::kStandalone);
  process.feed(CoordinatorStarted{"10.0.0.4:29400", true});
  const auto probes = those<Send>(process.feed(Witnesses{{real}}));
  ASSERT_EQ(probes.size(), 1U);
  const ProbeReply reply{*lineage_of(*decode_frame(probes.front().frame))};
  process.receive({{9, 9}, ""}, reply, real);
  for (int i = 0; i < 20; ++i) {
    process.feed(Witnesses{{"10.0.1." + std::to_string(i) + ":29500"}});
  }
  process.receive({{9, 9}, ""}, reply, real);
  std::set<std::string> probed;
  for (const Send& send : those<Send>(process.pass(5s))) probed.insert(send.address);
  EXPECT_EQ(probed.size(), 4U);
  EXPECT_TRUE(probed.contains(real)) << "one that has answered keeps its place";
  EXPECT_TRUE(probed.contains("10.0.1.19:29500")) << "it may have been restarted elsewhere";
}

}  // namespace
}  // namespace elastic::succession
