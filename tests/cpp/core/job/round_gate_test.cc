// The gate between the rendezvous machine and the sessions: what is held, until when, and which
// state is proposed.

#include "core/job/round_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "core/succession/job_record.h"
#include "support/node_info.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;

using Actions = std::vector<RendezvousAction>;

// A job of two nodes whose actions pass a gate.
class GatedJob {
 public:
  explicit GatedJob(int max_restarts = 3) {
    settings.min_nodes = settings.max_nodes = 2;
    settings.max_restarts = max_restarts;
    settings.settle = settings.restart_backoff = 0s;
    machine = RendezvousMachine(settings, now, 0s);
  }
  // What may be sent after this step.
  Actions step(const RendezvousEvent& event) {
    Actions actions;
    machine.step(event, now, &actions);
    gate.submit(machine, std::holds_alternative<rdzv::Tick>(event) ? nullptr : &event, &actions);
    return actions;
  }
  Actions join(std::uint64_t number) {
    NodeInfo info = support::node_info(number);
    info.highest_round = machine.record().round;
    return step(rdzv::Join{info, settings});
  }
  Actions in_force(std::uint64_t number) {
    Actions actions;
    gate.in_force(number, &actions);
    return actions;
  }
  std::optional<Proposal> take() { return gate.take_proposal(machine); }
  // The succession machine has the record, and what was decided so far is in force there.
  void keep() {
    gate.keep_at(RecordKeeper::kSuccession);
    in_force(take()->number);
  }
  // Nothing is held, and round 1 is in force.
  void run_round() {
    join(1);
    join(2);
    keep();
  }
  // The state that a proposal contains.
  RendezvousMachine state_of(const Proposal& proposal) {
    RendezvousMachine restored(settings, now, 0s);
    const auto record = succession::decode_record(proposal.content.bytes);
    EXPECT_TRUE(record.ok() && restored.restore(record->state, now).ok());
    return restored;
  }
  static NodeId id(std::uint64_t number) { return {1, number}; }

  Instant now = Instant(1000s);
  JobSettings settings;
  RendezvousMachine machine{settings, now, 0s};
  RoundGate gate{"job"};
};

template <typename Action>
int count(const Actions& actions) {
  return static_cast<int>(std::count_if(actions.begin(), actions.end(), [](const auto& one) {
    return std::holds_alternative<Action>(one);
  }));
}

TEST(RoundGate, WithOneVoterADecisionIsInForceAtOnce) {
  GatedJob job;
  job.join(1);
  EXPECT_EQ(count<rdzv::Round>(job.join(2)), 2);
  EXPECT_EQ(job.gate.last_needed(), 0u);
  EXPECT_FALSE(job.take().has_value()) << "no one would read it";
  job.step(rdzv::Leave{job.id(1), "SIGTERM"});
  EXPECT_TRUE(job.gate.may_acknowledge(job.id(1)));
  job.gate.decided_otherwise();
  EXPECT_EQ(job.gate.last_needed(), 0u);
}

// A keeper that confirms each proposal at once, and one voter, let the same through in one order.
TEST(RoundGate, SendsTheSameWithEveryKeeper) {
  GatedJob alone(2000);
  GatedJob kept(2000);
  kept.keep();
  const auto sent_by = [](GatedJob* job, const RendezvousEvent& event) {
    Actions sent = job->step(event);
    while (const auto proposal = job->take()) {
      for (RendezvousAction& one : job->in_force(proposal->number)) sent.push_back(std::move(one));
    }
    std::string text;
    for (const RendezvousAction& one : sent) {
      text += std::to_string(one.index()) + " to " + std::to_string(addressee(one).low) + "\n";
    }
    return text;
  };
  std::mt19937 random(7);
  int rounds = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t number = random() % 3 + 1;
    const std::uint64_t round = alone.machine.record().round;
    NodeInfo info = support::node_info(number);
    info.highest_round = round;
    const std::vector<RendezvousEvent> events = {
        rdzv::Join{info, alone.settings}, rdzv::Gone{alone.id(number), round},
        rdzv::Failed{alone.id(number), round, {}}, rdzv::Leave{alone.id(number), "SIGTERM"},
        rdzv::HoldGrowth{}};
    const RendezvousEvent& event = events[random() % events.size()];
    ASSERT_EQ(sent_by(&kept, event), sent_by(&alone, event)) << i;
    rounds += alone.machine.record().round != round;
  }
  EXPECT_GT(rounds, 100);
}

TEST(RoundGate, GivenBackToOneVoterItDropsWhatWasHeld) {
  GatedJob job;
  job.keep();
  job.join(1);
  EXPECT_TRUE(job.join(2).empty());
  const auto proposal = job.take();
  job.gate.keep_at(RecordKeeper::kOneVoter);
  EXPECT_TRUE(job.in_force(proposal->number).empty()) << "no record will have this round";
  EXPECT_EQ(count<rdzv::Restart>(job.step(rdzv::Failed{job.id(1), 1, {}})), 2);
}

TEST(RoundGate, AnotherKeeperIsProposedWhatWasNotInForce) {
  GatedJob job;
  job.gate.keep_at(RecordKeeper::kFile);
  job.in_force(job.take()->number);
  job.join(1);
  job.join(2);
  const auto at_the_file = job.take();
  job.gate.keep_at(RecordKeeper::kSuccession);
  EXPECT_TRUE(job.in_force(at_the_file->number).empty());
  EXPECT_EQ(count<rdzv::Round>(job.in_force(job.take()->number)), 2);
}

TEST(RoundGate, TheStateAtWhichAKeeperIsGivenTheRecordIsTheFirstProposal) {
  GatedJob job;
  job.join(1);
  job.join(2);
  job.gate.keep_at(RecordKeeper::kSuccession);
  job.gate.keep_at(RecordKeeper::kSuccession);
  const auto proposal = job.take();
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->number, 1u);
  EXPECT_EQ(proposal->content.round, 1u);
  EXPECT_EQ(job.state_of(*proposal).members().size(), 2u);
  EXPECT_FALSE(job.take().has_value()) << "one is open";
  job.in_force(1);
  EXPECT_FALSE(job.take().has_value()) << "nothing has changed";
}

TEST(RoundGate, TheLeaveOfAVoterIsAcknowledgedWhenItIsReplaced) {
  GatedJob job;
  job.run_round();
  job.gate.set_voters({GatedJob::id(1), GatedJob::id(3)});
  job.step(rdzv::Leave{GatedJob::id(1), "why"});
  job.in_force(job.take()->number);
  EXPECT_FALSE(job.gate.may_acknowledge(GatedJob::id(1)));
  job.gate.set_voters({GatedJob::id(3)});
  EXPECT_TRUE(job.gate.may_acknowledge(GatedJob::id(1)));
  EXPECT_EQ(job.gate.take_acknowledged(), std::vector<NodeId>{GatedJob::id(1)});
}

TEST(RoundGate, ARoundIsSentWhenItIsInForce) {
  GatedJob job;
  job.keep();
  EXPECT_EQ(count<rdzv::Waiting>(job.join(1)), 1) << "no decision: nothing is held";
  EXPECT_TRUE(job.join(2).empty());
  const auto proposal = job.take();
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->content.round, 1u);
  EXPECT_TRUE(job.in_force(proposal->number - 1).empty()) << "that one was in force before";
  EXPECT_TRUE(job.in_force(proposal->number + 1).empty()) << "that one was not proposed";
  EXPECT_EQ(count<rdzv::Round>(job.in_force(proposal->number)), 2);
}

TEST(RoundGate, AnActionThatFollowsADecisionWaitsForItToo) {
  GatedJob job;
  job.keep();
  job.join(1);
  job.join(2);
  const auto proposal = job.take();
  EXPECT_TRUE(job.step(rdzv::Failed{job.id(1), 1, {}}).empty());
  const Actions sent = job.in_force(proposal->number);
  ASSERT_GE(sent.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<rdzv::Round>(sent.front()));
  EXPECT_TRUE(std::holds_alternative<rdzv::Restart>(sent.back()));
}

TEST(RoundGate, OneProposalIsOpenAndTheNextHasTheNewestState) {
  GatedJob job;
  job.gate.keep_at(RecordKeeper::kSuccession);
  const auto first = job.take();
  job.join(1);
  job.join(2);  // round 1 while the first proposal is open
  job.step(rdzv::Gone{job.id(1), 1});
  job.step(rdzv::Gone{job.id(2), 1});
  job.join(1);
  job.join(2);  // and round 2
  ASSERT_EQ(job.machine.record().round, 2u);
  EXPECT_FALSE(job.take().has_value());
  EXPECT_TRUE(job.in_force(first->number).empty());
  const auto next = job.take();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->content.round, 2u) << "round 1 is not proposed any more";
  const Actions sent = job.in_force(next->number);
  EXPECT_EQ(count<rdzv::Round>(sent), 4) << "in the order in which they were decided";
  EXPECT_EQ(std::get<rdzv::Round>(sent.front()).record->round, 1u);
}

TEST(RoundGate, AResultIsSentWhenItIsInForce) {
  GatedJob job;
  job.run_round();
  job.step(rdzv::Done{job.id(1), 1});
  EXPECT_EQ(count<rdzv::Closed>(job.step(rdzv::Done{job.id(2), 1})), 0);
  const auto proposal = job.take();
  ASSERT_TRUE(proposal.has_value());
  EXPECT_TRUE(proposal->content.is_result);
  EXPECT_EQ(count<rdzv::Closed>(job.in_force(proposal->number)), 2);
}

TEST(RoundGate, ALeaveIsAcknowledgedWhenItIsInForce) {
  GatedJob job;
  job.run_round();
  EXPECT_EQ(count<rdzv::Restart>(job.step(rdzv::Leave{job.id(1), "SIGTERM"})), 1)
      << "the others are not delayed";
  EXPECT_FALSE(job.gate.may_acknowledge(job.id(1)));
  EXPECT_TRUE(job.gate.may_acknowledge(job.id(2)));
  const auto proposal = job.take();
  ASSERT_TRUE(proposal.has_value());
  EXPECT_TRUE(job.gate.take_acknowledged().empty());
  job.in_force(proposal->number);
  EXPECT_TRUE(job.gate.may_acknowledge(job.id(1)));
  EXPECT_EQ(job.gate.take_acknowledged(), std::vector<NodeId>{job.id(1)});
  EXPECT_TRUE(job.gate.take_acknowledged().empty());
}

TEST(RoundGate, ALeaveBeforeTheFirstRoundOrAfterTheResultIsAcknowledgedAtOnce) {
  GatedJob waiting;
  waiting.gate.keep_at(RecordKeeper::kSuccession);
  waiting.join(1);
  waiting.step(rdzv::Leave{waiting.id(1), "SIGTERM"});
  EXPECT_TRUE(waiting.gate.may_acknowledge(waiting.id(1)));

  GatedJob ended;
  ended.run_round();
  ended.step(rdzv::Done{ended.id(1), 1});
  ended.step(rdzv::Done{ended.id(2), 1});
  ended.in_force(ended.take()->number);
  ended.step(rdzv::Leave{ended.id(1), "the job has ended"});
  EXPECT_TRUE(ended.gate.may_acknowledge(ended.id(1)));
  EXPECT_FALSE(ended.take().has_value());
}

// However many nodes leave while one proposal is open, the job is encoded once for all of them.
TEST(RoundGate, AllLeavesDuringOneProposalAreInTheNext) {
  GatedJob job;
  job.join(1);
  job.join(2);
  job.gate.keep_at(RecordKeeper::kSuccession);
  const auto first = job.take();
  job.step(rdzv::Leave{job.id(1), "SIGTERM"});
  job.step(rdzv::Leave{job.id(2), "SIGTERM"});
  job.in_force(first->number);
  EXPECT_TRUE(job.gate.take_acknowledged().empty());
  const auto next = job.take();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->number, first->number + 1);
  EXPECT_TRUE(job.state_of(*next).nodes(job.now).empty());
  job.in_force(next->number);
  EXPECT_EQ(job.gate.take_acknowledged().size(), 2u);
  EXPECT_FALSE(job.take().has_value());
}

// The host of a done coordinator is lost: the successor must not repeat the work of that node.
TEST(RoundGate, ADoneNodeIsRecordedAndNothingWaitsForIt) {
  GatedJob job;
  job.run_round();
  EXPECT_EQ(count<rdzv::Waiting>(job.step(rdzv::Done{job.id(1), 1})), 1);
  EXPECT_TRUE(job.gate.may_acknowledge(job.id(1)));
  const auto proposal = job.take();
  ASSERT_TRUE(proposal.has_value());
  RendezvousMachine successor(job.settings, job.now, 0s);
  const auto record = succession::decode_record(proposal->content.bytes);
  ASSERT_TRUE(record.ok());
  ASSERT_TRUE(successor.succeed(record->state, {2, job.id(2), job.id(1)}, job.now).ok());
  Actions actions;
  successor.step(rdzv::Tick{}, job.now, &actions);
  EXPECT_EQ(successor.nodes(job.now).size(), 1u) << "the lost one is gone";
  EXPECT_EQ(successor.phase(), RendezvousPhase::kRunning);
  job.in_force(proposal->number);
  job.step(rdzv::Done{job.id(1), 7});
  EXPECT_FALSE(job.take().has_value()) << "of no round";
}

TEST(RoundGate, ANodeThatResumesAsDoneIsRecordedAtTheSuccessor) {
  GatedJob job;
  job.run_round();
  rdzv::Resume resume;
  resume.node.id = job.id(1);
  resume.node.name = "node1";
  resume.node.local_world_size = 1;
  resume.settings = job.settings;
  resume.phase = rdzv::NodePhase::kDone;
  resume.last = HeldRound{job.machine.record(), 0};
  job.step(resume);
  EXPECT_TRUE(job.take().has_value());
}

TEST(RoundGate, ASuccessorDoesNotProposeTheRestoredState) {
  GatedJob job;
  job.join(1);
  job.join(2);
  job.gate.restored(job.machine, RecordKeeper::kSuccession);
  EXPECT_EQ(job.gate.keeper(), RecordKeeper::kSuccession);
  EXPECT_FALSE(job.take().has_value());
  job.step(rdzv::Gone{job.id(1), 1});
  job.step(rdzv::Gone{job.id(2), 1});
  job.join(1);
  EXPECT_EQ(count<rdzv::Round>(job.join(2)), 0);
  EXPECT_EQ(job.take()->content.round, 2u);
}

TEST(RoundGate, ARecordNamesTheVoterPortsOfTheNodes) {
  GatedJob job;
  for (std::uint64_t number = 1; number <= 4; ++number) {
    job.gate.set_voter_address(job.id(number), "10.0.0." + std::to_string(number) + ":9");
  }
  job.gate.set_voter_address(job.id(2), "");
  job.gate.forget(job.id(3));
  job.gate.keep_at(RecordKeeper::kSuccession);
  const auto record = succession::decode_record(job.take()->content.bytes);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->job_id, "job");
  EXPECT_EQ(record->nodes, (std::vector<succession::RecordedNode>{{job.id(1), "10.0.0.1:9"},
                                                                  {job.id(4), "10.0.0.4:9"}}));
}

}  // namespace
}  // namespace elastic::core
