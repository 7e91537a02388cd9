#include "core/snapshot/snapshot_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/job/job_fixture.h"
#include "core/session/session_wire.h"

namespace elastic::snapshot {
namespace {

// "0:5,6 1:5" is what a node holds of its ranks. Steps from 100 on were saved in another round, as
// the steps without the hundreds.
std::vector<HeldState> parse(const std::string& text, int world_size) {
  std::vector<HeldState> held;
  std::string number;
  int rank = 0;
  for (const char c : text + " ") {
    if (c == ':') {
      rank = std::stoi(number);
    } else if (c == ',' || c == ' ') {
      if (!number.empty()) {
        const std::int64_t step = std::stoll(number);
        held.push_back({.rank = rank,
                        .world_size = world_size,
                        .step = step % 100,
                        .round = static_cast<std::uint32_t>(step / 100)});
      }
    } else {
      number += c;
      continue;
    }
    number.clear();
  }
  return held;
}

struct Case {
  const char* what;
  std::vector<const char*> nodes;  // of two ranks each
  std::int64_t step;
};

TEST(SnapshotNewest, IsOfTheRanksOfOneNode) {
  const std::vector<HeldState> held = {{.rank = 2, .world_size = 4, .step = 6},
                                       {.rank = 2, .world_size = 4, .step = 7},
                                       {.rank = 3, .world_size = 4, .step = 6},
                                       {.rank = 3, .world_size = 4, .step = 8}};
  EXPECT_EQ(newest_step(held, 4, 2, 2), 6);
  EXPECT_EQ(newest_step(held, 4, 2, 1), 7);
  EXPECT_EQ(newest_step(held, 4, 1, 2), -1);
  EXPECT_EQ(newest_step(held, 8, 2, 2), -1);
}

TEST(SnapshotPlan, IsTheNewestStepThatEveryRankHasOnItsNode) {
  const Case cases[] = {
      {"nothing was saved", {"", ""}, -1},
      {"all have both", {"0:5,6 1:5,6", "2:5,6 3:5,6"}, 6},
      {"rank 1 was killed while it wrote step 6", {"0:5,6 1:5", "2:5,6 3:5,6"}, 5},
      {"rank 3 was one step behind", {"0:6,7 1:6,7", "2:6,7 3:5,6"}, 6},
      {"two steps apart", {"0:7,8 1:7,8", "2:7,8 3:5,6"}, -1},
      {"a node is new", {"0:5,6 1:5,6", ""}, -1},
      {"a rank has saved nothing", {"0:5,6 1:5,6", "2:5,6"}, -1},
      {"the nodes have changed places", {"2:5,6 3:5,6", "0:5,6 1:5,6"}, -1},
      {"the first save of one rank only", {"0:1 1:1", "2:1"}, -1},
      {"step 0", {"0:0 1:0", "2:0 3:0"}, 0},
      {"a spare has step 6 of a round before the job began again",
       {"0:5,6 1:5,6", "2:106 3:5,6"},
       -1},
      {"all are of that round", {"0:105,106 1:105", "2:105,106 3:104,105"}, 5},
      {"a node reports more than two", {"0:1,2,3 1:1,3", "2:1,2,3 3:2,1"}, 1},
  };
  for (const Case& one : cases) {
    std::vector<std::vector<HeldState>> held;
    for (const char* node : one.nodes) held.push_back(parse(node, 4));
    std::vector<NodeHoldings> nodes;
    for (std::size_t i = 0; i < held.size(); ++i) {
      nodes.push_back({static_cast<int>(2 * i), 2, &held[i]});
    }
    EXPECT_EQ(plan_resume(nodes, 4).step, one.step) << one.what;
    EXPECT_EQ(plan_resume(nodes, 5).step, -1) << one.what << ", and another world size";
  }
}

// What nodes hold of other ranks counts, if they send it and it is a copy.
TEST(SnapshotPlan, CountsTheCopiesOfOtherNodes) {
  const auto copies = [](const std::string& text) {
    std::vector<HeldState> held = parse(text, 4);
    for (HeldState& one : held) one.is_copy = true;
    return held;
  };
  const auto with = [](std::vector<HeldState> own, const std::vector<HeldState>& more) {
    own.insert(own.end(), more.begin(), more.end());
    return own;
  };
  const std::string address = "10.0.0.1:4000";
  const std::string other = "10.0.0.2:4000";
  const auto plan = [&](const std::vector<HeldState>& a, const std::vector<HeldState>& b,
                        std::string first = "x") {
    if (first == "x") first = address;
    const std::vector<NodeHoldings> nodes = {{0, 2, &a, &first}, {2, 2, &b, &other}};
    std::string text = std::to_string(plan_resume(nodes, 4).step);
    for (std::size_t node = 0; node < 2; ++node) {
      for (const HeldSource& one : plan_sources(nodes, 4, plan_resume(nodes, 4), node)) {
        text += " " + std::to_string(one.rank) + "<" + one.address;
      }
    }
    return text;
  };
  const auto survivor = with(parse("0:5,6,7 1:5,6,7", 4), copies("2:5,6 3:5 0:5 1:5"));
  EXPECT_EQ(plan(survivor, {}), "5 2<" + address + " 3<" + address);
  EXPECT_EQ(plan(survivor, {}, ""), "-1") << "it sends none";
  EXPECT_EQ(plan(survivor, parse("2:5,6 3:6", 4)), "6");
  EXPECT_EQ(plan(copies("0:5 1:5"), copies("2:5 3:5")),
            "5 0<" + address + " 1<" + address + " 2<" + other + " 3<" + other);
  EXPECT_EQ(plan(with(survivor, {{.rank = -1, .world_size = 4, .step = 5}}), {}), "-1");
  // The nodes have changed places: each has the states of its ranks on the other one.
  EXPECT_EQ(plan(with(parse("2:5 3:5", 4), copies("2:5 3:5")),
                 with(parse("0:5 1:5", 4), copies("0:5 1:5"))),
            "5 0<" + other + " 1<" + other + " 2<" + address + " 3<" + address);
}

TEST(SnapshotPlan, IsDescribedInOneSentence) {
  const auto held = parse("0:5,6 1:5,6", 2);
  EXPECT_EQ(describe_plan({.step = 6}, 9, held, 2, 0, 2),
            "continued at step 6 from memory: 3 steps lost");
  EXPECT_EQ(describe_plan({.step = 6}, 7, held, 2, 0, 2),
            "continued at step 6 from memory: 1 step lost");
  EXPECT_EQ(describe_plan({.step = 6}, -1, held, 2, 0, 2), "continued at step 6 from memory");
  EXPECT_EQ(describe_plan({}, 9, held, 3, 0, 2),
            "the snapshots in memory are not used (the world size has changed from 2 to 3): every "
            "rank restores its own checkpoint");
  EXPECT_EQ(describe_plan({}, 9, parse("0:5", 2), 2, 0, 2),
            "the snapshots in memory are not used (rank 1 has none on this node): every rank "
            "restores its own checkpoint");
  EXPECT_EQ(describe_plan({}, 9, held, 2, 0, 2),
            "the snapshots in memory are not used (no step is complete in memory on every rank): "
            "every rank restores its own checkpoint");
}

class SnapshotJobTest : public core::JobTest {
 protected:
  using JobActions = std::vector<core::JobAction>;

  JobActions join_with(int index, const std::string& held, std::uint64_t highest_round) {
    rdzv::Join join{support::node_info(static_cast<std::uint64_t>(index)), settings_};
    join.node.highest_round = highest_round;
    join.node.previous_rank = index;
    join.node.held = parse(held, 2);
    for (HeldState& one : join.node.held) one.is_replicated = is_replicated_;
    join.node.copies_address = "node" + std::to_string(index) + ":1";
    return step(join);
  }
  // A worker of node 0 fails, and both join again with what they hold.
  JobActions next_round(const std::string& first, const std::string& second) {
    const std::uint64_t round = job_.rendezvous().record().round;
    (void)step(rdzv::Failed{node(0), round, {}});
    for (const int index : {0, 1}) (void)step(rdzv::Gone{node(index), round});
    (void)join_with(0, first, round);
    return join_with(1, second, round);
  }
  static std::vector<std::int64_t> steps_of(const JobActions& actions) {
    std::vector<std::int64_t> steps;
    for (const auto& round : all<rdzv::Round>(actions)) steps.push_back(round.record->resume.step);
    return steps;
  }
  JobSettings with_restarts() {
    settings_.max_restarts = 9;
    return settings_;
  }

  bool is_replicated_ = false;
};

TEST_F(SnapshotJobTest, AllRanksOfARoundContinueFromOneStep) {
  job_ = core::Job("job", with_restarts(), now_, Duration::zero());
  EXPECT_EQ(steps_of(begin_round()), (std::vector<std::int64_t>{-1, -1}));
  EXPECT_EQ(steps_of(next_round("0:5,6", "1:4,5")), (std::vector<std::int64_t>{5, 5}));
  EXPECT_EQ(steps_of(next_round("0:6,7", "1:6,7")), (std::vector<std::int64_t>{7, 7}));
  EXPECT_EQ(steps_of(next_round("0:7,8", "")), (std::vector<std::int64_t>{-1, -1}));
}

TEST_F(SnapshotJobTest, ObserversSeeTheNewestThatEveryNodeHas) {
  (void)begin_round();
  const auto saved = [&](int index, std::int64_t at) {
    hang::NodeProgress progress{.round = job_.rendezvous().record().round};
    progress.saved_step = at;
    progress.saved_age = core::milliseconds(200);
    (void)step(core::job_event::Progressed{node(index), progress});
  };
  saved(0, 7);
  EXPECT_FALSE(core::describe_job(&job_, now_).saved);
  saved(1, 6);
  now_ += core::seconds(1);
  const ObservedSave expected{.step = 6, .age = core::milliseconds(1200)};
  EXPECT_EQ(core::describe_job(&job_, now_).saved, expected);
  (void)next_round("", "");
  EXPECT_FALSE(core::describe_job(&job_, now_).saved);
}

// A node that did not receive the round before its coordinator was lost receives the same step.
TEST_F(SnapshotJobTest, AnotherCoordinatorSendsTheSameStep) {
  job_ = core::Job("job", with_restarts(), now_, Duration::zero());
  (void)begin_round();
  (void)next_round("0:5,6", "1:4,5");
  core::Job successor("job", settings_, now_, Duration::zero());
  ASSERT_TRUE(successor.succeed(job_.rendezvous().encode(), {.term = 2}, now_).ok());
  rdzv::Resume resume{
      .node = support::node_info(1), .settings = settings_, .last = {}, .failure = {}};
  resume.node.highest_round = 1;
  resume.node.held = parse("1:4,5", 2);
  JobActions actions;
  successor.step(resume, now_, &actions);
  EXPECT_EQ(steps_of(actions), (std::vector<std::int64_t>{5}));
}

// Node 1 has only step 5, and gets the newest from node 0. Another coordinator names the same step.
TEST_F(SnapshotJobTest, AReplicatedStepIsTheNewestOfAnyNode) {
  job_ = core::Job("job", with_restarts(), now_, Duration::zero());
  is_replicated_ = true;
  (void)begin_round();
  const auto rounds = all<rdzv::Round>(next_round("0:5,6", "1:4,5"));
  const ResumePoint point{.step = 6, .round = 0, .kind = ResumeKind::kReplicated};
  ASSERT_EQ(rounds.size(), 2U);
  for (const rdzv::Round& round : rounds) {
    EXPECT_EQ(round.record->resume, point);
    ASSERT_EQ(round.sources.size(), 1U);
    EXPECT_EQ(round.sources[0].address, round.own.group_rank == 0 ? "" : "node0:1");
  }
  core::Job successor("job", settings_, now_, Duration::zero());
  ASSERT_TRUE(successor.succeed(job_.rendezvous().encode(), {.term = 2}, now_).ok());
  rdzv::Resume resume{
      .node = support::node_info(1), .settings = settings_, .last = {}, .failure = {}};
  resume.node.highest_round = 1;
  JobActions actions;
  successor.step(resume, now_, &actions);
  const auto again = all<rdzv::Round>(actions);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].record->resume, point);
}

TEST(SnapshotWire, MessagesCarryWhatNodesHoldAndTheStep) {
  const auto decoded = [](const session::ClientMessage& message) {
    std::string bytes;
    session::append(&bytes, message);
    session::ClientMessage out;
    EXPECT_EQ(session::decode(bytes, &out).status, session::DecodeStatus::kMessage);
    return out;
  };
  rdzv::Join join{support::node_info(0), {}};
  join.node.held = {{.rank = 3,
                     .world_size = 4,
                     .step = 1204,
                     .round = 2,
                     .digest = 0xFFFFFFFF,
                     .is_copy = true,
                     .is_replicated = true},
                    {.rank = 2, .world_size = 4, .step = 1204}};
  join.node.copies_address = "10.0.0.1:4000";
  EXPECT_EQ(std::get<rdzv::Join>(decoded(join)).node.held, join.node.held);
  rdzv::Resume resume{.node = join.node, .settings = {}, .last = {}, .failure = {}};
  resume.last.emplace();
  resume.last->record.resume = {.step = 1204, .round = 2, .kind = ResumeKind::kReplicated};
  const auto resumed = std::get<rdzv::Resume>(decoded(resume));
  EXPECT_EQ(resumed.node.held, join.node.held);
  EXPECT_EQ(resumed.node.copies_address, join.node.copies_address);
  EXPECT_EQ(resumed.last->record.resume, resume.last->record.resume);

  RoundRecord record;
  record.nodes = record.world_size = 1;
  record.master_addr = "a";
  record.resume = {.step = 1204, .round = 2, .kind = ResumeKind::kReplicated};
  NodeAssignment own;
  own.local_world_size = own.role_world_size = 1;
  std::string bytes;
  const std::vector<HeldSource> sources = {
      {3, 2, "10.0.0.1:4000"},
      {.rank = 5, .round = 2, .address = "10.0.0.1:4000", .is_shared = true, .world_size = 8}};
  session::append(
      &bytes, rdzv::Round{{}, std::make_shared<const RoundRecord>(record), own, nullptr, sources});
  session::ServerMessage out;
  ASSERT_EQ(session::decode(bytes, &out).status, session::DecodeStatus::kMessage);
  EXPECT_EQ(std::get<rdzv::Round>(out).record->resume, record.resume);
  EXPECT_EQ(std::get<rdzv::Round>(out).sources, sources);
}

}  // namespace
}  // namespace elastic::snapshot
