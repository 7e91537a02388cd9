// Joins: which nodes are admitted, when the first round completes, what is rejected, and what
// happens after the end of a job.

#include <gmock/gmock.h>

#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Rendezvous, ASingleNodeRunsAtOnce) {
  Job job(nnodes(1, 1), kStartHold);
  const Sent sent = job.join("a");
  const auto* round = job.action_to<rdzv::Round>(sent, "a");
  ASSERT_NE(round, nullptr);
  EXPECT_EQ(round->record->round, 1u);
  EXPECT_EQ(round->record->nodes, 1);
  EXPECT_EQ(round->record->world_size, 1);
  EXPECT_EQ(round->record->master_addr, job.node("a").address);
  EXPECT_EQ(round->record->master_port, job.node("a").store_port);
  EXPECT_EQ(round->record->restarts, 0);
}

TEST(Rendezvous, CompletesAtOnceAtMaxNodes) {
  Job job(nnodes(1, 3), kStartHold);
  EXPECT_FALSE(job.has_round(job.join("a"), "a"));
  EXPECT_FALSE(job.has_round(job.join("b"), "b"));
  const Sent sent = job.join("c");
  EXPECT_EQ(sent.count<rdzv::Round>(), 3);
}

TEST(Rendezvous, RestartDoesNotWaitForResumesAfterAFirstRound) {
  Job job(nnodes(2, 2), kStartHold);
  job.join("a");
  job.join("b");
  job.pass(100ms);
  job.rejoin("a");
  job.rejoin("b");
  EXPECT_EQ(job.round(), 2u);
  EXPECT_TRUE(job.is_running());
}

TEST(Rendezvous, TheFirstRoundWaitsForTheLastCallAndNotLonger) {
  Job job(nnodes(2, 3));
  job.join("a");
  job.run(100s, {"a"});
  job.join("b");  // min_nodes: the last call begins here
  EXPECT_THAT(job.describe(), HasSubstr("last call ends in 30 s"));
  job.run(29s, {"a", "b"});
  EXPECT_TRUE(job.is_forming());
  job.run(2s, {"a", "b"});
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.round(), 1u);
}

TEST(Rendezvous, TheLastCallBeginsAgainWhenTooFewAreLeft) {
  Job job(nnodes(2, 3));
  job.join_all({"a", "b"});
  job.run(20s, {"a", "b"});
  job.leave("b");
  job.run(20s, {"a"});
  EXPECT_TRUE(job.is_forming());
  job.join("c");
  job.run(29s, {"a", "c"});
  EXPECT_TRUE(job.is_forming());
  job.run(2s, {"a", "c"});
  EXPECT_TRUE(job.is_running());
}

TEST(Rendezvous, EveryWaitingMessageNamesWhatIsMissing) {
  Job job(nnodes(2, 4));
  const Sent first = job.join("a");
  ASSERT_NE(job.action_to<rdzv::Waiting>(first, "a"), nullptr);
  EXPECT_THAT(job.action_to<rdzv::Waiting>(first, "a")->message,
              "1 of at least 2 nodes (a), gives up");
  EXPECT_EQ(job.action_to<rdzv::Waiting>(first, "a")->remaining, JobSettings().join_timeout);
  const Sent second = job.join("b");
  EXPECT_THAT(job.action_to<rdzv::Waiting>(second, "b")->message,
              "2 of up to 4 nodes (a, b), last call ends");
}

TEST(Rendezvous, WaitingNodeReceivesAMessageEveryTenSeconds) {
  JobSettings settings = nnodes(2, 2);
  settings.node_timeout = 60s;
  Job job(settings);
  job.join("a");
  EXPECT_EQ(job.pass_and_tick(9s).count<rdzv::Waiting>(), 0);
  EXPECT_EQ(job.pass_and_tick(1s).count<rdzv::Waiting>(), 1);
  EXPECT_EQ(job.pass_and_tick(10s).count<rdzv::Waiting>(), 1);
}

TEST(Rendezvous, AJoinTimesOutByItselfBeforeTheFirstRound) {
  JobSettings settings = nnodes(2, 2);
  settings.join_timeout = 100s;
  settings.node_timeout = 1000s;
  Job job(settings);
  job.join("a");
  EXPECT_EQ(job.pass_and_tick(100s - 1ns).count<rdzv::TimedOut>(), 0);
  const Sent sent = job.pass_and_tick(1ns);
  ASSERT_NE(job.action_to<rdzv::TimedOut>(sent, "a"), nullptr);
  EXPECT_THAT(job.action_to<rdzv::TimedOut>(sent, "a")->message, HasSubstr("1 of 2 nodes (a)"));
  EXPECT_THAT(job.action_to<rdzv::TimedOut>(sent, "a")->message, HasSubstr("1 min 40 s"));
  EXPECT_TRUE(job.machine().is_removable()) << "nothing is left of a job that never began";
  job.join("b");
  EXPECT_TRUE(job.has_round(job.join("a"), "a")) << "it may try again";
}

// A node whose heartbeats take longer than node_timeout is evicted again and again while it waits.
TEST(Rendezvous, AJoinAfterAnEvictionContinuesTheWait) {
  JobSettings settings = with(nnodes(3, 3), [](JobSettings& s) {
    s.join_timeout = 100s;
    s.node_timeout = 6s;
  });
  Job job(settings);
  job.join_all({"slow", "steady"});
  const auto reload = [&] { return job.machine().load(job.machine().encode(), job.now()); };
  ASSERT_TRUE(reload().ok());
  for (int i = 0; i < 16; ++i) {
    job.run(6s, {"steady"});
    ASSERT_TRUE(reload().ok()) << "the deadline is part of the state";
    EXPECT_NE(job.action_to<rdzv::Waiting>(job.join("slow"), "slow"), nullptr);
  }
  job.beat("steady");
  job.pass(4s - 1ns);
  EXPECT_EQ(job.tick().count<rdzv::TimedOut>(), 0);
  job.pass(1ns);
  const Sent sent = job.tick();
  EXPECT_NE(job.action_to<rdzv::TimedOut>(sent, "slow"), nullptr);
  EXPECT_NE(job.action_to<rdzv::TimedOut>(sent, "steady"), nullptr);
  job.join("slow");
  EXPECT_EQ(job.pass_and_tick(5s).count<rdzv::TimedOut>(), 0) << "the next wait has its own limit";
}

TEST(Rendezvous, OverdueJoinTimesOutWhenOtherNodesLeave) {
  JobSettings settings = with(nnodes(2, 3), [](JobSettings& s) {
    s.join_timeout = 100s;
    s.last_call_timeout = 300s;
    s.node_timeout = 1000s;
  });
  Job job(settings);
  job.join_all({"a", "b"});
  EXPECT_EQ(job.pass_and_tick(150s).count<rdzv::TimedOut>(), 0) << "the last call is on";
  job.leave("b");
  EXPECT_EQ(job.tick().count<rdzv::TimedOut>(), 1);
}

TEST(Rendezvous, RanksFollowTheNaturalOrderOfNames) {
  Job job(nnodes(3, 3));
  job.join_all({"node10_7_0", "node2_9_0", "node1_8_0"});
  EXPECT_EQ(job.rank("node1_8_0"), 0);
  EXPECT_EQ(job.rank("node2_9_0"), 1);
  EXPECT_EQ(job.rank("node10_7_0"), 2);
  EXPECT_EQ(job.share("node10_7_0").record->master_addr, job.node("node1_8_0").address);
}

TEST(Rendezvous, HintsOrderTheFirstRound) {
  Job job(nnodes(3, 3));
  job.node("a").static_rank = 2;
  job.node("b").static_rank = 0;
  job.node("c").static_rank = 1;
  job.join_all({"a", "b", "c"});
  EXPECT_EQ(job.rank("a"), 2);
  EXPECT_EQ(job.rank("b"), 0);
  EXPECT_EQ(job.rank("c"), 1);
}

TEST(Rendezvous, NodesMayDifferInWorkersAndRoles) {
  Job job(nnodes(3, 3));
  job.node("a").local_world_size = 1;
  job.node("b").local_world_size = 3;
  job.node("b").role = "reader";
  job.node("c").local_world_size = 2;
  job.join_all({"a", "b", "c"});
  EXPECT_EQ(job.share("a").own, (NodeAssignment{0, 1, 0, 0, 3}));
  EXPECT_EQ(job.share("b").own, (NodeAssignment{1, 3, 1, 0, 3}));
  EXPECT_EQ(job.share("c").own, (NodeAssignment{2, 2, 4, 1, 3}));
  EXPECT_EQ(job.share("a").record->world_size, 6);
}

TEST(Rendezvous, AllMembersHoldTheDigestOfOneMemberList) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  const std::uint64_t digest = job.share("a").record->members_digest;
  EXPECT_EQ(digest, job.share("b").record->members_digest);
  Job other(nnodes(2, 2));
  other.node("b").local_world_size = 2;
  other.join_all({"a", "b"});
  EXPECT_NE(digest, other.share("b").record->members_digest);
}

TEST(Rendezvous, ALateNodeBeyondMaxIsASpareAndFormsNoSecondGroup) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  const Sent sent = job.join("late");
  ASSERT_NE(job.action_to<rdzv::Waiting>(sent, "late"), nullptr);
  EXPECT_THAT(job.action_to<rdzv::Waiting>(sent, "late")->message,
              HasSubstr("this node is a spare"));
  EXPECT_EQ(sent.count<rdzv::Restart>(), 0);
  EXPECT_EQ(job.machine().spare_nodes(), 1);
  EXPECT_EQ(job.machine().waiting_nodes(), 0) << "spares are not counted";
}

struct Disagreement {
  const char* name;
  std::function<void(JobSettings&)> change;
  const char* message;
};

TEST(Rendezvous, NodesWithOtherSettingsAreRejectedWithBothValues) {
  const Disagreement disagreements[] = {
      {"nnodes", [](JobSettings& s) { s.max_nodes = 4; },
       "this node has --nnodes=2:4, the job has --nnodes=2:3"},
      {"restarts", [](JobSettings& s) { s.max_restarts = 7; },
       "this node has --max-restarts=7, the job has --max-restarts=0"},
      {"policy", [](JobSettings& s) { s.on_loss = LossPolicy::kFail; },
       "this node has --on-node-loss=fail, the job has --on-node-loss=replace"},
      {"changes", [](JobSettings& s) { s.max_membership_changes = 3; },
       "this node has --max-membership-changes=3, the job has --max-membership-changes=(no limit)"},
      {"extra", [](JobSettings& s) { s.extra[0].second = "2.0"; },
       "this node has version=2.0, the job has version=1.0"},
      {"extra that is missing", [](JobSettings& s) { s.extra.clear(); },
       "this node has version=(not given), the job has version=1.0"},
  };
  for (const Disagreement& one : disagreements) {
    JobSettings settings = nnodes(2, 3);
    settings.extra = {{"version", "1.0"}};
    Job job(settings);
    job.join("a");
    one.change(settings);
    const Sent sent = job.step(rdzv::Join{job.node("b"), settings});
    ASSERT_NE(job.action_to<rdzv::Refused>(sent, "b"), nullptr) << one.name;
    EXPECT_EQ(job.action_to<rdzv::Refused>(sent, "b")->error.message(), one.message);
  }
}

TEST(Rendezvous, NodesThatWaitLearnOfOneThatIsRefused) {
  Job job(nnodes(2, 2));
  job.join("a");
  const auto waiting = [&job] {
    const Sent sent = job.join("a");
    return job.action_to<rdzv::Waiting>(sent, "a")->message;
  };
  job.step(rdzv::Join{job.node("c"), nnodes(3, 3)});
  EXPECT_THAT(waiting(), HasSubstr("; refused c: it has --nnodes=3, the job has --nnodes=2"));
  job.step(rdzv::Join{job.node("d"), nnodes(2, 4)});
  EXPECT_THAT(waiting(), AllOf(HasSubstr("; refused d: "), Not(HasSubstr("refused c"))));
  job.join("b");
  job.leave("b");
  EXPECT_THAT(job.machine().describe(job.now()), Not(HasSubstr("refused"))) << "of that round";
}

JobSettings running(const std::string& program, int min_nodes = 2, int max_nodes = 2) {
  JobSettings settings = nnodes(min_nodes, max_nodes);
  settings.extra = {{"program", program}};
  return settings;
}

TEST(Rendezvous, ASurplusNodeWithAnotherProgramIsRefused) {
  Job job(running("train.py 1"));
  job.join("a");
  job.step(rdzv::Join{job.node("b"), running("train.py 1")});
  const Sent other = job.step(rdzv::Join{job.node("c"), running("tune.py 3")});
  ASSERT_NE(job.action_to<rdzv::Refused>(other, "c"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Refused>(other, "c")->error.message(),
            "all nodes of the job run train.py 1, this node has tune.py 3: another job uses "
            "this endpoint; give each job its own --rdzv-id");
  const Sent same = job.step(rdzv::Join{job.node("d"), running("train.py 1")});
  EXPECT_NE(job.action_to<rdzv::Waiting>(same, "d"), nullptr) << "a spare";
  const Sent unknown = job.step(rdzv::Join{job.node("e"), nnodes(2, 2)});
  EXPECT_NE(job.action_to<rdzv::Waiting>(unknown, "e"), nullptr);
}

TEST(Rendezvous, ANodeWithAnotherProgramDoesNotReceiveTheResult) {
  Job job(running("train.py 1"));
  job.join_all({"a", "b"});
  job.done("a");
  job.done("b");
  ASSERT_EQ(job.machine().phase(), RendezvousPhase::kClosed);
  const Sent other = job.step(rdzv::Join{job.node("c"), running("tune.py 3")});
  EXPECT_NE(job.action_to<rdzv::Refused>(other, "c"), nullptr);
  const Sent same = job.step(rdzv::Join{job.node("d"), running("train.py 1")});
  EXPECT_NE(job.action_to<rdzv::Closed>(same, "d"), nullptr);
}

TEST(Rendezvous, NodesOfOneJobMayHaveArgumentsOfTheirOwn) {
  Job job(running("train.py 1"));
  job.join("a");
  job.step(rdzv::Join{job.node("b"), running("train.py 2")});
  EXPECT_EQ(job.machine().phase(), RendezvousPhase::kRunning);
  const Sent spare = job.step(rdzv::Join{job.node("c"), running("train.py 3")});
  EXPECT_NE(job.action_to<rdzv::Waiting>(spare, "c"), nullptr);
}

TEST(Rendezvous, ANodeWithAnotherProgramDoesNotJoinAJobThatTakesFurtherNodes) {
  Job job(running("train.py 1", 1, 4));
  job.join_all({"a", "b"});
  job.run(1min, {"a", "b"});
  const Sent other = job.step(rdzv::Join{job.node("c"), running("tune.py 3", 1, 4)});
  EXPECT_NE(job.action_to<rdzv::Refused>(other, "c"), nullptr);
  EXPECT_EQ(job.join("d").count<rdzv::Refused>(), 0);
}

TEST(Rendezvous, AJobOfOneNodeTakesANodeWithOtherArguments) {
  Job job(running("train.py 1", 1, 4));
  job.join("a");
  job.run(1min, {"a"});
  const Sent other = job.step(rdzv::Join{job.node("b"), running("train.py 2", 1, 4)});
  EXPECT_EQ(other.count<rdzv::Refused>(), 0);
}

TEST(Rendezvous, ANodeThatMayReplaceAMemberIsNoSurplus) {
  Job lost(running("train.py 1"));
  lost.join_all({"a", "b"});
  lost.cut("b");
  const Sent sent = lost.step(rdzv::Join{lost.node("c"), running("train.py 2")});
  EXPECT_NE(lost.action_to<rdzv::Waiting>(sent, "c"), nullptr);
}

TEST(Rendezvous, TimingsMayDiffer) {
  Job job(nnodes(2, 2));
  job.join("a");
  JobSettings hasty = job.settings();
  hasty.settle = 0s;
  EXPECT_TRUE(job.has_round(job.step(rdzv::Join{job.node("b"), hasty}), "b"));
}

struct BadValue {
  const char* name;
  std::function<void(NodeInfo&, JobSettings&)> change;
  const char* message;
};

TEST(Rendezvous, InvalidValuesAreRejected) {
  const BadValue bad_values[] = {
      {"no workers", [](NodeInfo& n, JobSettings&) { n.local_world_size = 0; }, "nproc_per_node"},
      {"too many workers",
       [](NodeInfo& n, JobSettings&) { n.local_world_size = kLocalWorldSizeMax + 1; },
       "nproc_per_node must be 1 to 4096, not 4097"},
      {"long name", [](NodeInfo& n, JobSettings&) { n.name.assign(300, 'x'); }, "longer than 255"},
      {"round", [](NodeInfo& n, JobSettings&) { n.highest_round = ~0ULL; }, "out of range"},
      {"grace", [](NodeInfo& n, JobSettings&) { n.stop_grace = -1s; }, "must not be negative"},
      {"min > max", [](NodeInfo&, JobSettings& s) { s.min_nodes = 9; },
       "nnodes=9:3: the minimum is greater than the maximum"},
      {"no nodes", [](NodeInfo&, JobSettings& s) { s.min_nodes = 0; }, "min_nodes"},
      {"no timeout", [](NodeInfo&, JobSettings& s) { s.node_timeout = 0s; },
       "node_timeout: must be positive"},
  };
  for (const BadValue& one : bad_values) {
    Job job(nnodes(2, 3));
    NodeInfo info = job.node("a");
    JobSettings settings = job.settings();
    one.change(info, settings);
    const Sent sent = job.step(rdzv::Join{info, settings});
    ASSERT_NE(job.action_to<rdzv::Refused>(sent, "a"), nullptr) << one.name;
    EXPECT_THAT(std::string(job.action_to<rdzv::Refused>(sent, "a")->error.message()),
                HasSubstr(one.message));
  }
}

TEST(Rendezvous, ListsEveryNode) {
  Job job(nnodes(2, 2));
  job.join_all({"b", "a"});
  job.join("spare");
  job.pass(3s);
  job.cut("a");
  const std::vector<NodeStatus> nodes = job.machine().nodes(job.now());
  ASSERT_EQ(nodes.size(), 3u);
  for (const NodeStatus& node : nodes) {
    EXPECT_EQ(node.rank, node.name == "a" ? 0 : node.name == "b" ? 1 : -1);
    EXPECT_EQ(node.is_suspect, node.name == "a");
    EXPECT_EQ(node.silence, 3s);
    const bool works = node.phase == rdzv::NodePhase::kWorking;
    EXPECT_EQ(works, node.name != "spare");
  }
}

TEST(Rendezvous, TheNumberOfSparesHasALimit) {
  JobSettings settings = nnodes(1, 1);
  Rendezvous machine(settings, Instant(0s), 0s);
  std::vector<RendezvousAction> actions;
  NodeInfo info;
  for (std::uint64_t i = 0; i < 1 + 4096; ++i) {
    info.id = {1, i};
    machine.step(rdzv::Join{info, settings}, Instant(0s), &actions);
  }
  EXPECT_EQ(machine.spare_nodes(), 4096);
  actions.clear();
  info.id = {2, 0};
  machine.step(rdzv::Join{info, settings}, Instant(0s), &actions);
  ASSERT_EQ(actions.size(), 1u);
  const auto* refused = std::get_if<rdzv::Refused>(&actions[0]);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->error.code(), StatusCode::kResourceExhausted);
}

JobSettings static_ranks(int nodes) {
  return with(nnodes(nodes, nodes), [](JobSettings& s) { s.static_ranks = true; });
}

TEST(Rendezvous, StaticRanksAreTheGivenOnesInEveryRound) {
  Job job(static_ranks(3));
  job.node("a").static_rank = 2;
  job.node("b").static_rank = 0;
  job.node("c").static_rank = 1;
  job.join_all({"a", "b", "c"});
  EXPECT_EQ(job.rank("a"), 2);
  job.cut("b");
  job.node("b2").static_rank = 0;
  job.join("b2");  // replaces b, whose session is closed
  EXPECT_TRUE(job.is_closed()) << "the loss below min_nodes cost what the budget did not have";
}

TEST(Rendezvous, AStaticJobRestartsAsAGangAndAReplacementTakesItsRank) {
  Job job(with(static_ranks(2), [](JobSettings& s) { s.max_restarts = 1; }));
  job.node("a").static_rank = 0;
  job.node("b").static_rank = 1;
  job.join_all({"a", "b"});
  job.cut("b");
  job.node("b2").static_rank = 1;
  const Sent sent = job.join("b2");
  EXPECT_NE(job.action_to<rdzv::Evicted>(sent, "b"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Restart>(sent, "a"), nullptr);
  job.rejoin("a");
  EXPECT_EQ(job.rank("a"), 0);
  EXPECT_EQ(job.rank("b2"), 1);
  EXPECT_EQ(job.share("b2").record->restarts, 1);
}

TEST(Rendezvous, DuplicateStaticRanksAreRejectedWithBothNames) {
  Job job(static_ranks(2));
  job.node("a").static_rank = 0;
  job.node("b").static_rank = 0;
  job.join("a");
  const Sent sent = job.join("b");
  ASSERT_NE(job.action_to<rdzv::Refused>(sent, "b"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Refused>(sent, "b")->error.message(),
            "node_rank=0 was given to both a and b");
}

TEST(Rendezvous, AStaticRankMustBeInRange) {
  Job job(static_ranks(2));
  job.node("a").static_rank = 2;
  const Sent sent = job.join("a");
  ASSERT_NE(job.action_to<rdzv::Refused>(sent, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Refused>(sent, "a")->error.message(),
            "join: node_rank must be 0 to 1, not 2");
}

TEST(Rendezvous, ClosedJobSendsItsResultToLateNodes) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.done("b");
  ASSERT_TRUE(job.is_closed());
  const Sent sent = job.join("late");
  ASSERT_NE(job.action_to<rdzv::Closed>(sent, "late"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Closed>(sent, "late")->result->outcome, JobOutcome::kSucceeded);
}

TEST(Rendezvous, AfterItsLastSessionAnIdStartsANewGeneration) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.fail("a", 3);
  job.gone("a");
  job.gone("b");
  ASSERT_TRUE(job.is_closed());
  job.leave("a");
  EXPECT_FALSE(job.machine().is_removable());
  job.cut("b");
  EXPECT_TRUE(job.machine().is_removable());

  job.join("c");
  const Sent sent = job.join("d");
  const auto* round = job.action_to<rdzv::Round>(sent, "c");
  ASSERT_NE(round, nullptr);
  EXPECT_EQ(round->record->generation, 2u);
  EXPECT_EQ(round->record->round, 2u) << "rounds grow for ever";
  EXPECT_EQ(round->record->restarts, 0);
  EXPECT_EQ(round->record->membership_changes, 0);
}

TEST(Rendezvous, LateNodeReceivesTheResultOfItsOwnGeneration) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.done("a");
  job.cut("a");
  job.pass_and_tick(50ms);
  job.done("b");
  job.leave("b");
  job.join("c");  // the next generation
  const Sent sent = job.resume("a", rdzv::NodePhase::kDone);
  ASSERT_NE(job.action_to<rdzv::Closed>(sent, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Closed>(sent, "a")->result->outcome, JobOutcome::kSucceeded);
}

TEST(Rendezvous, ANewGenerationMayHaveOtherSettings) {
  Job job(nnodes(1, 1));
  job.join("a");
  job.done("a");
  job.leave("a");
  const Sent sent = job.step(rdzv::Join{job.node("b"), nnodes(2, 2)});
  EXPECT_NE(job.action_to<rdzv::Waiting>(sent, "b"), nullptr);
  EXPECT_EQ(job.machine().settings().min_nodes, 2);
}

TEST(Rendezvous, CloseSendsTheResultToAllNodes) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.join("spare");
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
  result.message = "closed by the user";
  const Sent sent = job.step(rdzv::Close{job.id("a"), result});
  EXPECT_EQ(sent.count<rdzv::Closed>(), 3);
  EXPECT_EQ(job.result().message, "closed by the user");
  EXPECT_THAT(job.describe(), StartsWith("closed: "));
}

TEST(Rendezvous, CloseFromAnEvictedNodeIsRejected) {
  Job job(nnodes(1, 2));
  job.join_all({"a", "b"});
  job.cut("b");
  job.pass_and_tick(50ms);
  EXPECT_NE(job.action_to<rdzv::Evicted>(job.step(rdzv::Close{job.id("b"), {}}), "b"), nullptr);
  EXPECT_FALSE(job.is_closed());
  job.step(rdzv::Close{job.id("a node of another job"), {}});
  EXPECT_TRUE(job.is_closed());
}

TEST(Rendezvous, MessagesOfAnotherRoundChangeNothing) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  const Sent gone = job.step(rdzv::Gone{job.id("a"), 7});
  ASSERT_NE(job.action_to<rdzv::Superseded>(gone, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Superseded>(gone, "a")->round, 1u);
  EXPECT_NE(job.action_to<rdzv::Superseded>(job.step(rdzv::Done{job.id("a"), 0}), "a"), nullptr);
  EXPECT_NE(job.action_to<rdzv::Superseded>(job.step(rdzv::Failed{job.id("a"), 2, {}}), "a"),
            nullptr);
  EXPECT_TRUE(job.is_running());
}

TEST(Rendezvous, MemberThatRejoinsRestartsTheRoundWithoutCharge) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  const Sent sent = job.join("a");
  ASSERT_NE(job.action_to<rdzv::Restart>(sent, "b"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Restart>(sent, "b")->cause, rdzv::RestartCause::kRejoin);
  EXPECT_NE(job.action_to<rdzv::Waiting>(sent, "a"), nullptr);
  job.rejoin("b");
  EXPECT_EQ(job.round(), 2u);
  EXPECT_EQ(job.share("a").record->restarts, 0);
}

TEST(Rendezvous, JoinThatCrossesItsRoundChangesNothing) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.node("a").highest_round = 0;  // sent before round 1 was received
  const Sent sent = job.join("a");
  ASSERT_NE(job.action_to<rdzv::Round>(sent, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::Round>(sent, "a")->record->round, 1u);
  EXPECT_TRUE(job.is_running());

  job.join("b");  // ends the round
  job.node("a").highest_round = 0;
  const Sent late = job.join("a");
  EXPECT_EQ(late.count<rdzv::Round>(), 0) << "a receives round 1 first, and may start its workers";
  EXPECT_NE(job.action_to<rdzv::Restart>(late, "a"), nullptr);
  EXPECT_EQ(job.rejoin("a").count<rdzv::Round>(), 2);
}

TEST(Rendezvous, RepeatedJoinUpdatesThePort) {
  Job job(nnodes(2, 2));
  job.join("a");
  job.node("a").store_port = 4711;
  EXPECT_NE(job.action_to<rdzv::Waiting>(job.join("a"), "a"), nullptr);
  job.join("b");
  EXPECT_EQ(job.share("a").record->master_port, 4711);
}

TEST(Rendezvous, TheStoreOfARoundMayCloseWhenNoMemberHasWorkers) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.join("b");
  const Sent sent = job.gone("a");
  ASSERT_NE(job.action_to<rdzv::RoundOver>(sent, "a"), nullptr);
  EXPECT_EQ(job.action_to<rdzv::RoundOver>(sent, "a")->round, 1u);

  job.join("a");
  job.done("a");
  EXPECT_NE(job.action_to<rdzv::RoundOver>(job.done("b"), "a"), nullptr);
}

}  // namespace
}  // namespace elastic::test
