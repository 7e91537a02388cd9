// A coordinator with one voter that ends before its job, and members that do not answer in time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"
#include "support/node_info.h"

namespace elastic::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CoordinatorHandOverTest : public TurnedCoordinatorTest {
 protected:
  void SetUp() override {
    auto started = TurnedCoordinator::start({}, {.job = "job"});
    ASSERT_TRUE(started.ok()) << started.status().message();
    coordinator = *std::move(started);
  }
  static session::ClientHello hello_of(const SessionClient& node, std::uint64_t attempt) {
    return {.capabilities = session::kCanTakeOver,
            .job_id = "job",
            .node = node.info.id,
            .secret = node.secret,
            .attempt = attempt};
  }
  // By rank: members of a round, which can run the coordinator. The coordinator begins to end.
  std::vector<std::unique_ptr<SessionClient>> end_a_round_of(int n) {
    std::vector<std::unique_ptr<SessionClient>> nodes;
    for (int i = 1; i <= n; ++i) {
      auto node = std::make_unique<SessionClient>(coordinator->port());
      node->be(static_cast<std::uint64_t>(i));
      node->say_first(hello_of(*node, 1));
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
    return by_rank;
  }
};

TEST_F(CoordinatorHandOverTest, AnotherMemberIsAskedAndTheFirstAnswerCounts) {
  const auto nodes = end_a_round_of(3);
  const auto first = nodes[0]->expect<session::TakeOver>();
  nodes[2]->send_message(rdzv::Leave{nodes[2]->info.id, "SIGTERM"});
  group.advance(seconds(2));
  const auto second = nodes[1]->expect<session::TakeOver>();
  EXPECT_GT(second.term, first.term);
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  for (const std::size_t number : {0U, 1U}) {
    const auto moved = nodes[number]->expect<session::Incumbent>();
    EXPECT_TRUE(moved.is_elsewhere);
    EXPECT_EQ(moved.incumbent.address, "127.0.0.1:9");
    EXPECT_EQ(moved.incumbent.node, nodes[0]->info.id);
    EXPECT_EQ(moved.incumbent.term, first.term);
    EXPECT_EQ(moved.left.has_value(), number == 0);
    if (moved.left) {
      EXPECT_THAT(*moved.left,
                  testing::ElementsAre(session::LateLeave{nodes[2]->info.id, "SIGTERM"}));
    }
  }
}

// ---- The member that was asked.

class OfferTest : public InVirtualTime {
 protected:
  // `others`: nodes of the job beside the one that keeps the offer.
  Result<bool> keep_offer(std::uint64_t others) {
    const JobSettings settings = nnodes(1, 8);
    core::RendezvousMachine machine(settings, group.now(), Duration::zero());
    std::vector<core::RendezvousAction> actions;
    for (std::uint64_t id = 1; id <= 1 + others; ++id) {
      machine.step(rdzv::Join{support::node_info(id), settings}, group.now(), &actions);
    }
    return service->keep_offer({.lineage = {8, 9},
                                .term = 2,
                                .record = {"job", settings, machine.encode(), {}},
                                .lost_incumbent = {},
                                .is_recorded = false},
                               {1, 1}, [this] { ++num_named; });
  }
  // True: it is a node of the job here; false: it is turned away.
  bool is_greeted(std::optional<succession::Successor> successor) {
    SessionClient client(service->port());
    client.say_first({.job_id = "job",
                      .node = {1, 2},
                      .secret = {2, 7},
                      .attempt = ++hellos,
                      .successor = successor});
    const auto message = client.receive();
    if (!message) return false;
    const auto* moved = std::get_if<session::Incumbent>(&*message);
    EXPECT_TRUE(moved == nullptr || moved->is_elsewhere);
    return std::holds_alternative<session::ServerHello>(*message);
  }

  const std::unique_ptr<os::LoopThread> thread = *os::LoopThread::start("coordinator", &group);
  const std::unique_ptr<CoordinatorService> service =
      *CoordinatorService::open(&thread->loop(), {}, {.job = "job"});
  int num_named = 0;
  std::uint64_t hellos = 0;
};

TEST_F(OfferTest, BeginsWithTheFirstNodeThatWasSentThere) {
  EXPECT_FALSE(*keep_offer(1));
  EXPECT_FALSE(is_greeted(std::nullopt));
  EXPECT_FALSE(is_greeted(succession::Successor{{8, 9}, 3})) << "it was sent to another member";
  EXPECT_FALSE(is_greeted(succession::Successor{{7, 7}, 2})) << "of another lineage";
  EXPECT_EQ(num_named, 0);
  EXPECT_TRUE(is_greeted(succession::Successor{{8, 9}, 2}));
  EXPECT_EQ(num_named, 1);
  EXPECT_TRUE(is_greeted(std::nullopt)) << "of any node from then on";
  EXPECT_FALSE(service->drop_offer());
}

TEST_F(OfferTest, ThatIsDroppedBeginsNoMore) {
  EXPECT_FALSE(*keep_offer(1));
  EXPECT_TRUE(service->drop_offer());
  service->begin_offer();
  EXPECT_FALSE(is_greeted(succession::Successor{{8, 9}, 2}));
  EXPECT_EQ(service->describe(), "");
}

TEST_F(OfferTest, BeginsAtOnceIfNoOtherNodeCanHaveBeenAsked) {
  EXPECT_TRUE(*keep_offer(0));
  EXPECT_TRUE(is_greeted(std::nullopt));
}

TEST(LateLeaves, OfALargeJobFitIntoOneFrame) {
  session::Incumbent moved;
  moved.left.emplace();
  for (std::size_t i = 0; i < session::kLateLeavesMax; ++i) {
    const bool has_reason = i < session::kLateReasonsMax;
    const std::string reason = has_reason ? std::string(kMessageBytesMax, 'x') : "it was stopped";
    moved.left->push_back({{1, i}, reason});
  }
  std::string bytes;
  session::append(&bytes, session::ServerMessage(moved));
  session::ServerMessage message;
  ASSERT_EQ(session::decode(bytes, &message).status, session::DecodeStatus::kMessage);
  EXPECT_EQ(std::get<session::Incumbent>(message).left, moved.left);
}

TEST_F(CoordinatorHandOverTest, ARefusalOfTheSecondLeavesTheFirstTimeToAnswer) {
  const auto nodes = end_a_round_of(2);
  const auto first = nodes[0]->expect<session::TakeOver>();
  group.advance(seconds(2));
  nodes[1]->expect<session::TakeOver>();
  nodes[1]->send_message(session::TakenOver{.error = "no port is free"});
  group.advance(seconds(1));
  EXPECT_FALSE(coordinator->is_drained());
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  for (const auto& node : nodes) {
    const auto moved = node->expect<session::Incumbent>();
    EXPECT_EQ(moved.incumbent.address, "127.0.0.1:9");
    EXPECT_EQ(moved.incumbent.term, first.term);
  }
}

TEST_F(CoordinatorHandOverTest, ARefusalOfAllEndsTheCoordinator) {
  const auto nodes = end_a_round_of(2);
  nodes[0]->expect<session::TakeOver>();
  group.advance(seconds(2));
  nodes[1]->expect<session::TakeOver>();
  nodes[0]->send_message(session::TakenOver{.error = "no port is free"});
  group.advance(milliseconds(100));
  EXPECT_FALSE(coordinator->is_drained());
  nodes[1]->send_message(session::TakenOver{.error = "no port is free"});
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(1)));
}

TEST_F(CoordinatorHandOverTest, TheOnlyMemberHasLongerToAnswer) {
  const auto nodes = end_a_round_of(1);
  nodes[0]->expect<session::TakeOver>();
  group.advance(seconds(5));
  EXPECT_FALSE(coordinator->is_drained());
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  EXPECT_EQ(nodes[0]->expect<session::Incumbent>().incumbent.address, "127.0.0.1:9");
}

TEST_F(CoordinatorHandOverTest, AMemberThatReturnsAfterTheNamingLearnsOfTheSuccessor) {
  auto nodes = end_a_round_of(2);
  const auto offer = nodes[0]->expect<session::TakeOver>();
  const std::uint64_t number = nodes[1]->info.id.low;
  nodes[1].reset();
  group.advance(milliseconds(100));
  const Instant named_at = group.now();
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  nodes[0]->expect<session::Incumbent>();
  nodes[0].reset();
  group.advance(milliseconds(200));
  ASSERT_FALSE(coordinator->is_drained());
  SessionClient again(coordinator->port());
  again.be(number);
  again.say_first(hello_of(again, 2));
  const auto moved = again.expect<session::Incumbent>();
  EXPECT_EQ(moved.incumbent.address, "127.0.0.1:9");
  EXPECT_EQ(moved.incumbent.term, offer.term);
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(1)));
  EXPECT_LE(group.now() - named_at, milliseconds(300)) << "the others have that long";
}

TEST_F(CoordinatorHandOverTest, ACoordinatorWithoutAbsentMembersEndsAtOnce) {
  auto nodes = end_a_round_of(2);
  nodes[0]->expect<session::TakeOver>();
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  for (auto& node : nodes) {
    node->expect<session::Incumbent>();
    node.reset();
  }
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, milliseconds(100)));
}

// The record of the next member is without it.
TEST_F(CoordinatorHandOverTest, AMemberThatLeavesIsNotNamedAnyMore) {
  const auto nodes = end_a_round_of(2);
  nodes[0]->expect<session::TakeOver>();
  const Instant left_at = group.now();
  nodes[0]->send_message(rdzv::Leave{nodes[0]->info.id, "SIGTERM"});
  const auto second = nodes[1]->expect<session::TakeOver>();
  EXPECT_EQ(group.now(), left_at);
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  group.advance(milliseconds(100));
  nodes[1]->send_message(session::TakenOver{.address = "127.0.0.1:10"});
  const auto moved = nodes[1]->expect<session::Incumbent>();
  EXPECT_EQ(moved.incumbent.address, "127.0.0.1:10");
  EXPECT_EQ(moved.incumbent.term, second.term);
}

TEST_F(CoordinatorHandOverTest, WithoutAnAnswerTheCoordinatorEnds) {
  const auto nodes = end_a_round_of(2);
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(8)));
}

}  // namespace
}  // namespace elastic::host
