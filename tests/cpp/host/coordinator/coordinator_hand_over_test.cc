// A coordinator with one voter that ends before its job, and members that do not answer in time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"

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
  // By rank: members of a running round, which can run the coordinator.
  std::vector<std::unique_ptr<SessionClient>> run_round_of(int n) {
    std::vector<std::unique_ptr<SessionClient>> nodes;
    for (int i = 1; i <= n; ++i) {
      const auto id = static_cast<std::uint64_t>(i);
      auto node = std::make_unique<SessionClient>(coordinator->port());
      node->info.id = {1, id};
      node->info.name = "127.0.0.1_" + std::to_string(i) + "_0";
      node->info.address = "127.0.0.1";
      node->info.store_port = static_cast<std::uint16_t>(20000 + i);
      node->secret = {id, 7};
      node->say_first({.capabilities = session::kCanTakeOver,
                       .job_id = "job",
                       .node = node->info.id,
                       .secret = node->secret,
                       .attempt = 1});
      node->join(nnodes(1, n));
      nodes.push_back(std::move(node));
    }
    std::vector<std::unique_ptr<SessionClient>> by_rank(nodes.size());
    for (auto& node : nodes) {
      const int rank = node->expect<rdzv::Round>().own.group_rank;
      by_rank.at(static_cast<std::size_t>(rank)) = std::move(node);
    }
    return by_rank;
  }
};

TEST_F(CoordinatorHandOverTest, AnotherMemberIsAskedAndTheFirstAnswerCounts) {
  const auto nodes = run_round_of(3);
  coordinator->begin_close(seconds(30));
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
  const auto nodes = run_round_of(2);
  coordinator->begin_close(seconds(30));
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
  const auto nodes = run_round_of(2);
  coordinator->begin_close(seconds(30));
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
  const auto nodes = run_round_of(1);
  coordinator->begin_close(seconds(30));
  nodes[0]->expect<session::TakeOver>();
  group.advance(seconds(5));
  EXPECT_FALSE(coordinator->is_drained());
  nodes[0]->send_message(session::TakenOver{.address = "127.0.0.1:9"});
  EXPECT_EQ(nodes[0]->expect<session::Incumbent>().incumbent.address, "127.0.0.1:9");
}

TEST_F(CoordinatorHandOverTest, WithoutAnAnswerTheCoordinatorEnds) {
  const auto nodes = run_round_of(2);
  coordinator->begin_close(seconds(30));
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(8)));
}

}  // namespace
}  // namespace elastic::host
