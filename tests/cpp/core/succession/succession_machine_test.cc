// The succession machine of one process, with the frames of the others written by the test. Whole
// jobs are simulated in sim/succession_sim_test.cc.

#include "core/succession/succession_machine.h"

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
  for (Action& action : process.feed(Propose{1, round})) actions.push_back(std::move(action));
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
  accept_all(&process, process.feed(Propose{1, result}));
  ASSERT_TRUE(process.machine().job_register().known()->record.content.is_result);
  ASSERT_TRUE(process.machine().job_register().known()->is_in_force);
  EXPECT_TRUE(those<AnnounceAtEndpoints>(process.pass(2 * kAnnounceInterval)).empty());
  EXPECT_TRUE(those<Displaced>(process.feed(Met{of_another_job(3)})).empty());
}

TEST(SuccessionMachine, AProcessThatCoordinatesNothingMeetsNobody) {
  Process process(kSelf);
  EXPECT_TRUE(process.feed(Met{of_another_job(3)}).empty());
}

// ---- An operator's override.

const reg::Voter kOperator{{9, 1}, ""};

std::vector<OverrideReply> replies(const std::vector<Action>& actions) {
  std::vector<OverrideReply> all;
  for (const Send& send : those<Send>(actions)) {
    const auto frame = decode_frame(send.frame);
    if (const auto* reply = std::get_if<OverrideReply>(&frame->body)) all.push_back(*reply);
  }
  return all;
}

// This process has accepted the record of three, and its session has lost the coordinator.
void strand(Process* process, core::SharedBytes bytes = record_of_three().content.bytes) {
  process->feed(Informed{former_coordinator()});
  reg::Record record = record_of_three();
  record.content.bytes = bytes;
  process->receive(kFormer, reg::Accept{{record, true}});
  process->feed(IncumbentLost{});
}

TEST(SuccessionOverride, IsRefusedWithTheReason) {
  struct Case {
    const char* what;
    std::function<std::vector<Action>(Process*)> run;
    std::string text;
  };
  const auto command = [](Process* process) { return process->receive(kOperator, Override{5}); };
  const std::vector<Case> cases = {
      {"nothing is known", command, "this node knows no record of the job"},
      {"another voter's node",
       [&](Process* process) {
         Incumbent incumbent = former_coordinator();
         incumbent.voters.back() = {{4, 4}, "10.0.0.4:4711"};
         process->feed(Informed{incumbent});
         process->feed(IncumbentLost{});
         return command(process);
       },
       "this node is not a voter of the job: the voters are 10.0.0.1:4711, 10.0.0.2:4711, "
       "10.0.0.4:4711"},
      {"the coordinator answers again",
       [&](Process* process) {
         strand(process);
         process->feed(IncumbentReturned{});
         return command(process);
       },
       "the coordinator of the job is not lost: this node reaches it at 10.0.0.1:29400"},
      {"it answers again during the survey",
       [&](Process* process) {
         strand(process);
         command(process);
         process->feed(IncumbentReturned{});
         return process->pass(2s);
       },
       "the coordinator of the job is not lost"},
      {"a majority answers",
       [&](Process* process) {
         strand(process);
         command(process);
         return process->receive(kOther, reg::AskReply{0, true, 1, std::nullopt});
       },
       "a majority of the job's voters answers (10.0.0.2:4711, 10.0.0.3:4711)"},
      {"a voter with a lesser id has the command, too",
       [&](Process* process) {
         strand(process);
         command(process);
         return process->receive(kOther, Override{0, true});
       },
       "another voter was given the command, too"},
      {"a record of another version",
       [&](Process* process) {
         strand(process, "?");
         command(process);
         return process->pass(2s);
       },
       "the record of the job has format"},
  };
  for (const Case& one : cases) {
    Process process(kSelf);
    const auto actions = one.run(&process);
    const auto all = replies(actions);
    ASSERT_EQ(all.size(), 1U) << one.what;
    EXPECT_EQ(all.front().nonce, 5U) << one.what;
    EXPECT_FALSE(all.front().is_done) << one.what;
    EXPECT_NE(all.front().text.find(one.text), std::string::npos) << all.front().text;
    EXPECT_TRUE(those<StartCoordinator>(actions).empty()) << one.what;
    EXPECT_TRUE(those<StartCoordinator>(process.pass(5s)).empty()) << one.what;
  }
}

TEST(SuccessionOverride, BeginsALineageUnderALaterTermThatReplacesTheFormerOne) {
  Process process(kSelf);
  strand(&process);
  EXPECT_TRUE(replies(process.receive(kOperator, Override{5})).empty());
  EXPECT_TRUE(replies(process.receive(kOperator, Override{5})).empty()) << "repeated";
  const auto actions = process.pass(2s);
  const auto started = those<StartCoordinator>(actions);
  ASSERT_EQ(started.size(), 1U);
  EXPECT_NE(started.front().lineage, kLineage);
  EXPECT_GT(started.front().term, 1U);
  EXPECT_EQ(started.front().lost_incumbent, kFormer.node);
  ASSERT_EQ(started.front().record.replaces.size(), 1U);
  EXPECT_EQ(started.front().record.replaces.front(), (Replaced{kLineage, {1, 1}}));
  const auto& known = process.machine().job_register().known();
  EXPECT_TRUE(known->is_in_force);
  EXPECT_EQ(known->record.voters, std::vector<reg::Voter>{kSelf});
  const auto done = replies(process.feed(CoordinatorStarted{"10.0.0.3:29400", false}));
  ASSERT_EQ(done.size(), 1U);
  EXPECT_TRUE(done.front().is_done);
  const auto again = replies(process.receive(kOperator, Override{6}));
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(again.front().is_done);
  EXPECT_EQ(again.front().nonce, 6U);
}

TEST(SuccessionOverride, ContinuesTheNewestRecordOfTheVotersThatAnswer) {
  Process process(kSelf);
  const reg::Voter fourth{{4, 4}, "10.0.0.4:4711"};
  const reg::Voter fifth{{5, 5}, "10.0.0.5:4711"};
  strand(&process);
  process.receive(kOperator, Override{5});
  reg::Record newer = record_of_three();
  newer.newness = {3, 8};
  newer.voters = {kFormer, fourth, fifth, kOther, kSelf};
  newer.content.round = 4;
  const auto asked =
      process.receive(kOther, reg::AskReply{0, false, 6, reg::KnownRecord{newer, true}});
  EXPECT_TRUE(replies(asked).empty()) << "two of five are no majority";
  process.pass(1s);
  process.receive(kOther, reg::Fetched{{newer, true}});
  const auto started = those<StartCoordinator>(process.pass(1s));
  ASSERT_EQ(started.size(), 1U);
  EXPECT_EQ(started.front().record.replaces.front(), (Replaced{kLineage, {3, 8}}));
  EXPECT_GT(started.front().term, 3U);
  EXPECT_EQ(process.machine().job_register().known()->record.content.round, 4U);
}

TEST(SuccessionOverride, BeginsNothingWithoutTheNewestRecordOfTheVotersThatAnswer) {
  Process process(kSelf);
  strand(&process);
  process.receive(kOperator, Override{5});
  reg::Record newer = record_of_three();
  newer.newness = {3, 8};
  newer.voters = {kFormer, kSelf, {{4, 4}, "10.0.0.4:4711"}};
  process.receive(kOther, reg::AskReply{0, false, 6, reg::KnownRecord{newer, true}});
  const auto actions = process.pass(2s);
  const auto is_fetch = [](const Send& one) {
    const auto frame = decode_frame(one.frame);
    const auto* message = frame.ok() ? std::get_if<reg::Message>(&frame->body) : nullptr;
    return message != nullptr && std::holds_alternative<reg::Fetch>(message->body);
  };
  const auto all = those<Send>(actions);
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), is_fetch));
  ASSERT_EQ(replies(actions).size(), 1U);
  EXPECT_NE(replies(actions).front().text.find("did not send it"), std::string::npos);
  EXPECT_TRUE(those<StartCoordinator>(actions).empty());
}

Announce announce_of(const Replaced& replaced) {
  return Announce{{.lineage = {8, 8},
                   .term = 9,
                   .node = kOther.node,
                   .address = "10.0.0.2:29401",
                   .voters = {kOther},
                   .replaces = {replaced}}};
}

TEST(SuccessionOverride, ANodeFollowsALineageThatReplacesItsOwnOnlyIfItHasLostTheCoordinator) {
  Process process(kSelf);
  strand(&process);
  process.feed(IncumbentReturned{});
  const Announce announce = announce_of({kLineage, {1, 1}});
  EXPECT_TRUE(those<Follow>(process.receive(kOther, announce)).empty());
  process.feed(IncumbentLost{});
  EXPECT_TRUE(those<Follow>(process.receive(kOther, announce_of({{6, 6}, {1, 1}}))).empty());
  const auto followed = those<Follow>(process.receive(kOther, announce));
  ASSERT_EQ(followed.size(), 1U);
  EXPECT_EQ(followed.front().incumbent.address, "10.0.0.2:29401");
  EXPECT_EQ(process.machine().incumbent()->lineage, (reg::LineageId{8, 8}));
  EXPECT_TRUE(process.machine().incumbent()->is_replicated());
  // Not back, whoever announces what.
  process.feed(IncumbentLost{});
  Incumbent former = former_coordinator();
  former.term = 20;
  EXPECT_TRUE(those<Follow>(process.receive(kFormer, Announce{former})).empty());
}

TEST(SuccessionOverride, ANodeStaysInALineageThatHasGoneOnSinceItWasReplaced) {
  Process process(kSelf);
  strand(&process);
  reg::Record newer = record_of_three();
  newer.newness = {1, 2};
  process.receive(kFormer, reg::Accept{{newer, true}});
  EXPECT_TRUE(those<Follow>(process.receive(kOther, announce_of({kLineage, {1, 1}}))).empty());
  EXPECT_FALSE(those<Follow>(process.receive(kOther, announce_of({kLineage, {1, 2}}))).empty());
}

TEST(SuccessionOverride, ACommandDuringAnotherOneIsAnsweredWhenThatIsDone) {
  Process process(kSelf);
  strand(&process);
  process.receive(kOperator, Override{5});
  const Announce announce = announce_of({kLineage, {1, 1}});
  const auto all = replies(process.receive(kOther, announce));
  ASSERT_EQ(all.size(), 1U);
  EXPECT_FALSE(all.front().is_done);
  EXPECT_NE(all.front().text.find("10.0.0.2:29401"), std::string::npos);
}

TEST(SuccessionOverride, AVoterThatIsStrandedNamesTheCommand) {
  Process process(kSelf);
  strand(&process);
  std::string text;
  for (const Log& log : those<Log>(process.pass(3s))) text += log.message;
  EXPECT_NE(text.find("elastic-launch override 10.0.0.3:4711 --rdzv-id job"), std::string::npos)
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
