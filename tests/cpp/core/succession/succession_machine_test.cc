// The succession machine of one process, with the frames of the others written by the test. Whole
// jobs are simulated in sim/succession_sim_test.cc.

#include "core/succession/succession_machine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;

const reg::Voter kFormer{{1, 1}, "10.0.0.1:4711"};
const reg::Voter kOther{{2, 2}, "10.0.0.2:4711"};
const reg::Voter kSelf{{3, 3}, "10.0.0.3:4711"};
const reg::LineageId kLineage{7, 7};

reg::Record record_of_three() {
  reg::Record record{.lineage = kLineage,
                     .newness = {1, 1},
                     .proposer = kFormer,
                     .voters = {kFormer, kOther, kSelf},
                     .previous_voters = {},
                     .content = {}};
  record.content.bytes = encode_record({.job_id = "job", .settings = {}, .state = {}, .nodes = {}});
  return record;
}

class Process {
 public:
  explicit Process(const reg::Voter& self, bool is_standalone = false)
      : machine_(settings_of(self, is_standalone), 1) {}

  std::vector<Action> feed(const Event& event) {
    std::vector<Action> actions;
    machine_.step(event, now_, &actions);
    return actions;
  }
  std::vector<Action> receive(const reg::Voter& from, const VoterBody& body,
                              const std::string& address = "") {
    return feed(Received{1, encode_frame({"job", from.node, NodeId{}, body}), address});
  }
  std::vector<Action> receive(const reg::Voter& from, const reg::Body& body) {
    return receive(from, reg::Message{kLineage, from.node, kSelf.node, body});
  }
  // Lets the time pass, tick by tick.
  std::vector<Action> pass(Duration time) {
    std::vector<Action> all;
    const Instant end = now_ + time;
    while (machine_.next_deadline() && *machine_.next_deadline() <= end) {
      now_ = std::max(now_, *machine_.next_deadline());
      for (Action& action : feed(Tick{})) all.push_back(std::move(action));
    }
    now_ = end;
    return all;
  }
  Machine& machine() { return machine_; }

 private:
  static Settings settings_of(const reg::Voter& self, bool is_standalone) {
    Settings settings;
    settings.job_id = "job";
    settings.self = self;
    settings.is_standalone = is_standalone;
    settings.reg.voters = 3;
    settings.follow_timeout = 1s;
    return settings;
  }

  Instant now_ = Instant(1h);
  Machine machine_;
};

template <typename A>
std::vector<A> those(const std::vector<Action>& actions) {
  std::vector<A> found;
  for (const Action& action : actions) {
    if (const auto* one = std::get_if<A>(&action)) found.push_back(*one);
  }
  return found;
}

// The records that the actions ask voters to accept.
std::vector<reg::Record> proposed(const std::vector<Action>& actions) {
  std::vector<reg::Record> records;
  for (const Send& send : those<Send>(actions)) {
    const auto frame = decode_frame(send.frame);
    const auto* message = std::get_if<reg::Message>(&frame->body);
    const auto* accept = message == nullptr ? nullptr : std::get_if<reg::Accept>(&message->body);
    if (accept != nullptr) records.push_back(accept->proposal.record);
  }
  return records;
}

// The former coordinator has handed over, and its vote elects this process.
std::vector<Action> elect(Process* process) {
  process->feed(Informed{{.lineage = kLineage,
                          .term = 1,
                          .node = kFormer.node,
                          .address = "10.0.0.1:29400",
                          .voters = record_of_three().voters}});
  process->receive(kFormer, reg::Accept{{record_of_three(), true}});
  process->receive(kFormer, reg::HandOver{2, {record_of_three(), true}});
  return process->receive(kFormer, reg::Accepted{.newness = {2, 1}, .is_accepted = true});
}

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

TEST(SuccessionMachine, AWitnessThatAnswersNoProbeCountsAsUnreachableUntilItAnswers) {
  const std::string address = "10.0.0.9:29500";
  const reg::Voter witness{{9, 9}, ""};
  Process process({{4, 4}, ""}, true);
  process.feed(CoordinatorStarted{"10.0.0.4:29400", true});
  process.feed(Witnesses{{address}});
  EXPECT_EQ(process.machine().unreached_witnesses(), address);
  process.receive(witness, ProbeReply{}, address);
  EXPECT_EQ(process.machine().unreached_witnesses(), "");
  process.pass(900ms);
  EXPECT_EQ(process.machine().unreached_witnesses(), "");
  process.pass(400ms);
  EXPECT_EQ(process.machine().unreached_witnesses(), address);
  process.receive(witness, ProbeReply{}, address);
  EXPECT_EQ(process.machine().unreached_witnesses(), "");
}

}  // namespace
}  // namespace elastic::succession
