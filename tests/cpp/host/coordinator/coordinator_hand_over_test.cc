// A coordinator with one voter that ends before its job: which nodes it asks for a voter port, and
// what its succession machine hears of that.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"

namespace elastic::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const succession::Incumbent kEnding{.lineage = {8, 9},
                                    .term = 1,
                                    .node = {9, 9},
                                    .address = "127.0.0.1:7",
                                    .voters = {{{9, 9}, ""}}};

class CoordinatorHandOverTest : public TurnedCoordinatorTest {
 protected:
  void SetUp() override { start({.job = "job", .feed = feed()}); }
  void start(CoordinatorHost host) {
    auto started = TurnedCoordinator::start({}, std::move(host));
    ASSERT_TRUE(started.ok()) << started.status().message();
    coordinator = *std::move(started);
  }
  SuccessionFeed feed() {
    return [this](const succession::Event& event) { heard.push_back(event); };
  }
  static session::ClientHello hello_of(const SessionClient& node, std::uint64_t attempt,
                                       std::uint64_t capabilities = session::kOpensPorts) {
    return {.capabilities = capabilities,
            .job_id = "job",
            .node = node.info.id,
            .secret = node.secret,
            .attempt = attempt};
  }
  // By rank: members of a round. The coordinator begins to end, and its first record is in force.
  std::vector<std::unique_ptr<SessionClient>> end_a_round_of(
      int n, std::uint64_t capabilities = session::kOpensPorts) {
    std::vector<std::unique_ptr<SessionClient>> nodes;
    for (int i = 1; i <= n; ++i) {
      auto node = std::make_unique<SessionClient>(coordinator->port());
      node->be(static_cast<std::uint64_t>(i));
      node->say_first(hello_of(*node, 1, capabilities));
      JobSettings settings = nnodes(1, n);
      settings.reconnect_grace = milliseconds(300);
      node->join(settings);
      nodes.push_back(std::move(node));
    }
    std::vector<std::unique_ptr<SessionClient>> by_rank(nodes.size());
    for (auto& node : nodes) {
      const int rank = node->expect<rdzv::Round>().own.group_rank;
      by_rank.at(static_cast<std::size_t>(rank)) = std::move(node);
    }
    coordinator->begin_close(seconds(30));
    EXPECT_EQ(count<succession::Propose>(), 1U) << "the machine begins the job's record";
    on_succession(succession::InForce{1});
    on_succession(succession::Inform{kEnding});
    return by_rank;
  }
  void on_succession(const succession::Action& action) {
    coordinator->on_succession(action);
    group.advance(milliseconds(1));
  }
  template <typename Event>
  std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(
        heard.begin(), heard.end(),
        [](const succession::Event& one) { return std::holds_alternative<Event>(one); }));
  }
  template <typename Event>
  std::optional<Event> last() const {
    for (auto one = heard.rbegin(); one != heard.rend(); ++one) {
      if (const auto* found = std::get_if<Event>(&*one)) return *found;
    }
    return std::nullopt;
  }

  std::vector<succession::Event> heard;
};

TEST_F(CoordinatorHandOverTest, AsksThreeMembersByRankForAPort) {
  const auto nodes = end_a_round_of(4);
  ASSERT_TRUE(last<succession::Resign>());
  EXPECT_TRUE(last<succession::Resign>()->awaits_nodes);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(nodes[rank]->expect<session::OpenPorts>().coordinator, kEnding);
  }
  EXPECT_FALSE(nodes[3]->receives<session::OpenPorts>());
}

TEST_F(CoordinatorHandOverTest, AMemberWithAPortMaySucceed) {
  const auto nodes = end_a_round_of(2);
  nodes[1]->expect<session::OpenPorts>();
  nodes[1]->send_message(session::OpenedPorts{.address = ":4711"});
  group.advance(milliseconds(1));
  const auto known = last<succession::Nodes>();
  ASSERT_TRUE(known);
  ASSERT_EQ(known->nodes.size(), 1U);
  EXPECT_EQ(known->nodes[0].node, nodes[1]->info.id);
  EXPECT_EQ(known->nodes[0].voter_address, "127.0.0.1:4711");
  EXPECT_TRUE(known->nodes[0].is_connected);
}

TEST_F(CoordinatorHandOverTest, AMemberWithoutAPortIsReplacedByTheNextOne) {
  const auto nodes = end_a_round_of(4);
  nodes[0]->expect<session::OpenPorts>();
  nodes[0]->send_message(session::OpenedPorts{.error = "no port is free"});
  nodes[3]->expect<session::OpenPorts>();
}

TEST_F(CoordinatorHandOverTest, WithoutAMemberThatMayHavePortsNobodyIsWaitedFor) {
  const auto nodes = end_a_round_of(2);
  for (const auto& node : nodes) {
    EXPECT_TRUE(last<succession::Resign>()->awaits_nodes);
    node->expect<session::OpenPorts>();
    node->send_message(session::OpenedPorts{.error = "no port is free"});
    group.advance(milliseconds(1));
  }
  EXPECT_FALSE(last<succession::Resign>()->awaits_nodes);
}

TEST_F(CoordinatorHandOverTest, ANodeThatDoesNotKnowTheMessageIsNotAsked) {
  const auto nodes = end_a_round_of(1, 1);
  EXPECT_FALSE(nodes[0]->receives<session::OpenPorts>());
}

TEST_F(CoordinatorHandOverTest, AMemberWhoseSessionBreaksIsAskedAgain) {
  auto nodes = end_a_round_of(1);
  nodes[0]->expect<session::OpenPorts>();
  const core::HeldRound round = held(1, 1, 0);
  nodes[0].reset();
  group.advance(milliseconds(50));
  SessionClient again(coordinator->port());
  again.be(1);
  again.say_first(hello_of(again, 2));
  again.resume(nnodes(1, 1), rdzv::NodePhase::kWorking, round);
  again.expect<session::OpenPorts>();
}

// It has noticed the loss of its connection, and the coordinator has not.
TEST_F(CoordinatorHandOverTest, AMemberWithANewSessionIsAskedAgain) {
  const auto nodes = end_a_round_of(1);
  nodes[0]->expect<session::OpenPorts>();
  SessionClient again(coordinator->port());
  again.be(1);
  again.say_first(hello_of(again, 2));
  again.resume(nnodes(1, 1), rdzv::NodePhase::kWorking, held(1, 1, 0));
  again.expect<session::OpenPorts>();
}

// A node that leaves is in the record of the next coordinator, or its leave is not answered.
TEST_F(CoordinatorHandOverTest, ALeaveIsAnsweredWhenTheRecordHasIt) {
  const auto nodes = end_a_round_of(2);
  nodes[1]->send_message(rdzv::Leave{nodes[1]->info.id, "SIGTERM"});
  EXPECT_TRUE(group.run_until([&] { return count<succession::Propose>() == 2; }, seconds(1)));
  nodes[1]->send_message(session::Heartbeat{Instant(seconds(1))});
  group.advance(milliseconds(10));
  on_succession(succession::InForce{2});
  nodes[1]->expect<session::HeartbeatReply>();
}

TEST_F(CoordinatorHandOverTest, TheNodesAreSentToTheSuccessorAndTheCoordinatorEnds) {
  auto nodes = end_a_round_of(2);
  succession::Incumbent next = kEnding;
  next.term = 2;
  next.node = nodes[1]->info.id;
  next.address = "127.0.0.1:9";
  on_succession(succession::StopCoordinator{"the coordinator ended in order", next});
  for (auto& node : nodes) {
    const auto moved = node->expect<session::Incumbent>();
    EXPECT_TRUE(moved.is_elsewhere);
    EXPECT_EQ(moved.incumbent, next);
    node.reset();
  }
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, milliseconds(100)));
}

TEST_F(CoordinatorHandOverTest, AMemberThatIsAwayLearnsOfTheSuccessorWhenItReturns) {
  auto nodes = end_a_round_of(2);
  const std::uint64_t number = nodes[1]->info.id.low;
  nodes[1].reset();
  group.advance(milliseconds(100));
  const Instant named_at = group.now();
  succession::Incumbent next = kEnding;
  next.term = 2;
  next.node = nodes[0]->info.id;
  next.address = "127.0.0.1:9";
  on_succession(succession::StopCoordinator{"the coordinator ended in order", next});
  nodes[0]->expect<session::Incumbent>();
  nodes[0].reset();
  group.advance(milliseconds(200));
  ASSERT_FALSE(coordinator->is_drained());
  SessionClient again(coordinator->port());
  again.be(number);
  again.say_first(hello_of(again, 2));
  EXPECT_EQ(again.expect<session::Incumbent>().incumbent, next);
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(1)));
  EXPECT_LE(group.now() - named_at, milliseconds(310)) << "the others have that long";
}

TEST_F(CoordinatorHandOverTest, WithoutAnAnswerOfItsMachineTheCoordinatorEnds) {
  const auto nodes = end_a_round_of(2);
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(8)));
}

TEST_F(CoordinatorHandOverTest, ARecordAboveTheLimitIsNotHandedOver) {
  coordinator.reset();
  start({.job = "job", .feed = feed(), .record_bytes_max = 10});
  SessionClient node(coordinator->port());
  node.be(1);
  node.say_first(hello_of(node, 1));
  node.join(nnodes(1, 1));
  node.expect<rdzv::Round>();
  coordinator->begin_close(seconds(30));
  group.advance(milliseconds(10));
  EXPECT_FALSE(last<succession::Resign>());
}

}  // namespace
}  // namespace elastic::host
