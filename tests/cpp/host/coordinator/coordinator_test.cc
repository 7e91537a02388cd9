// The coordinator over real sockets, in virtual time: joins, lost nodes, and clients without effect
// on a job.

#include "elastic/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "elastic/store_server.h"
#include "host/coordinator/coordinator_fixture.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

TEST_F(TurnedCoordinatorTest, ThreeNodesFormARoundAndEachReceivesIt) {
  start();
  std::vector<std::unique_ptr<SessionClient>> nodes;
  for (const std::uint64_t id : {3, 1, 2}) {
    nodes.push_back(connect(id));
    nodes.back()->join(nnodes(3, 3));
  }
  std::vector<int> ranks;
  for (const auto& node : nodes) {
    const auto hello = node->expect<session::ServerHello>();
    EXPECT_NE(hello.incarnation, 0u);
    const auto round = node->expect<rdzv::Round>();
    EXPECT_EQ(round.record->round, 1u);
    EXPECT_EQ(round.record->nodes, 3);
    EXPECT_EQ(round.record->master_port, 20001);
    ranks.push_back(round.own.group_rank);
  }
  EXPECT_EQ(ranks, (std::vector<int>{2, 0, 1})) << "by the names, not by the order of arrival";
}

TEST_F(TurnedCoordinatorTest, TheMemberListIsFetchedOnDemand) {
  start();
  const auto nodes = run_round(3, nnodes(3, 3));
  nodes[0]->send_message(session::FetchMembers{1});
  const auto page = nodes[0]->expect<session::Members>();
  EXPECT_EQ(page.round, 1u);
  EXPECT_EQ(page.total, 3);
  ASSERT_EQ(page.members.size(), 2u);
  EXPECT_EQ(page.members[0].name, nodes[1]->info.name);
}

TEST_F(TurnedCoordinatorTest, HeartbeatReplyHasBothTimes) {
  start();
  const auto node = connect(1);
  node->send_message(session::Heartbeat{Instant(seconds(77))});
  const auto reply = node->expect<session::HeartbeatReply>();
  EXPECT_EQ(reply.sent, Instant(seconds(77)));
  EXPECT_EQ(reply.time, group.now());
}

TEST_F(TurnedCoordinatorTest, LateNodeWaitsAndTheOthersReceiveTheCount) {
  start();
  JobSettings settings = nnodes(2, 4);
  settings.settle = settings.last_call_timeout = seconds(600);
  const auto nodes = run_round(4, settings);
  nodes[3]->send_message(rdzv::Leave{{}, "enough"});
  nodes[2]->send_message(rdzv::Leave{{}, "enough"});
  for (const auto& node : {nodes[0].get(), nodes[1].get()}) {
    node->info.highest_round = node->expect<rdzv::Restart>().round;
    node->send_message(rdzv::Gone{{}, 1});
    node->join(settings);
  }
  for (const auto& node : {nodes[0].get(), nodes[1].get()}) {
    EXPECT_EQ(node->expect<rdzv::Round>().record->nodes, 2);
  }
  const auto late = connect(9);
  late->join(settings);
  EXPECT_THAT(late->expect<rdzv::Waiting>().message, HasSubstr("will be admitted"));
  EXPECT_EQ(nodes[0]->expect<session::Counts>().waiting_nodes, 1);
  const auto observer = connect(10);
  EXPECT_EQ(observer->expect<session::Counts>().waiting_nodes, 1) << "pushed with the hello";
}

TEST_F(TurnedCoordinatorTest, ANodeWhoseSessionClosesIsLostAfterReconnectGrace) {
  start();
  JobSettings settings = nnodes(2, 3);
  settings.reconnect_grace = seconds(10);
  const auto nodes = run_round(3, settings);
  const Instant before = group.now();
  nodes[2]->raw().reset();
  const auto restart = nodes[0]->expect<rdzv::Restart>();
  EXPECT_EQ(group.now() - before, settings.reconnect_grace);
  EXPECT_EQ(restart.cause, rdzv::RestartCause::kMemberLost);
  EXPECT_THAT(restart.reason, HasSubstr(nodes[2]->info.name));
}

TEST_F(TurnedCoordinatorTest, SilentNodeIsLostAndNotified) {
  start();
  JobSettings settings = nnodes(1, 2);
  settings.node_timeout = seconds(5);
  const auto nodes = run_round(2, settings);
  group.advance(seconds(3));
  EXPECT_FALSE(nodes[0]->receives<rdzv::Restart>());  // which is a sign of life
  group.advance(seconds(3));
  EXPECT_TRUE(nodes[0]->receives<rdzv::Restart>());
  EXPECT_THAT(nodes[1]->expect<rdzv::Evicted>().reason, HasSubstr("no sign of life"));
}

TEST_F(TurnedCoordinatorTest, ASessionThatResumesInTimeChangesNothing) {
  start();
  JobSettings settings = nnodes(2, 2);
  settings.reconnect_grace = seconds(60);
  auto nodes = run_round(2, settings);
  nodes[1]->raw().reset();
  const auto again = connect(2);
  again->info.highest_round = 1;
  again->resume(settings, rdzv::NodePhase::kWorking, held(1, 2, 1));
  EXPECT_EQ(again->expect<rdzv::Resumed>().round, 1u);
  EXPECT_FALSE(nodes[0]->receives<rdzv::Restart>());
}

TEST_F(TurnedCoordinatorTest, NewestSessionOfANodeReplacesTheOlder) {
  start();
  JobSettings settings = nnodes(2, 2);
  settings.reconnect_grace = Duration::zero();
  const auto nodes = run_round(2, settings);
  const auto newer = connect(2);  // the older one is still open
  newer->info.highest_round = 1;
  newer->resume(settings, rdzv::NodePhase::kWorking, held(1, 2, 1));
  EXPECT_TRUE(nodes[1]->is_closed());
  EXPECT_EQ(newer->expect<rdzv::Resumed>().round, 1u);
  EXPECT_FALSE(nodes[0]->receives<rdzv::Restart>());
}

// What the node says was written before: a round in between would look as if it had none.
TEST_F(TurnedCoordinatorTest, ARoundFollowsWhatANodeSaysInANewSession) {
  start();
  const JobSettings settings = nnodes(2, 2);
  const auto first = connect(1);
  first->join(settings);
  first->expect<rdzv::Waiting>();
  const auto again = connect(1);
  again->expect<session::ServerHello>();
  const auto other = connect(2);
  other->join(settings);
  other->expect<rdzv::Round>();
  EXPECT_FALSE(again->receives<rdzv::Round>());
  again->resume(settings, rdzv::NodePhase::kJoined);
  EXPECT_EQ(again->expect<rdzv::Round>().record->round, 1u);
}

TEST_F(TurnedCoordinatorTest, LeaveIsNotALossAndIsSentAtOnce) {
  start();
  JobSettings settings = nnodes(1, 2);
  const auto nodes = run_round(2, settings);
  nodes[1]->send_message(rdzv::Leave{{}, "told to stop"});
  EXPECT_THAT(nodes[0]->expect<rdzv::Restart>().reason, HasSubstr("left (told to stop)"));
}

TEST_F(TurnedCoordinatorTest, NodesWithOtherSettingsAreRejectedWithBothValues) {
  start();
  const auto first = connect(1);
  first->join(nnodes(2, 2));
  first->expect<rdzv::Waiting>();
  const auto second = connect(2);
  second->join(nnodes(3, 3));
  EXPECT_EQ(second->expect<rdzv::Refused>().error.message(),
            "this node has --nnodes=3, the job has --nnodes=2");
}

TEST_F(TurnedCoordinatorTest, InvalidSettingsAreRejectedAndNotAdopted) {
  start();
  const auto first = connect(1);
  first->join(nnodes(3, 2));
  EXPECT_THAT(std::string(first->expect<rdzv::Refused>().error.message()),
              HasSubstr("the minimum is greater than the maximum"));
  first->info.local_world_size = 0;
  first->join(nnodes(3, 3));
  first->expect<rdzv::Refused>();
  const auto second = connect(2);
  second->join(nnodes(1, 1));
  second->expect<rdzv::Round>();
}

TEST_F(TurnedCoordinatorTest, MessageForAnUnknownJobIsRejected) {
  start();
  const auto node = connect(1);
  node->send_message(rdzv::Done{{}, 3});
  EXPECT_THAT(node->expect<rdzv::Evicted>().reason, HasSubstr("no node of the job is known"));
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  node->send_message(rdzv::Close{{}, result});
  EXPECT_EQ(node->expect<rdzv::Closed>().result->outcome, JobOutcome::kClosed);
  node->join(nnodes(1, 1));
  node->expect<rdzv::Round>();
}

TEST_F(TurnedCoordinatorTest, JobIdIsFreeAfterAllNodesLeft) {
  start();
  auto first = connect(1);
  first->join(nnodes(1, 1));
  first->expect<rdzv::Round>();
  first->send_message(rdzv::Done{{}, 1});
  first->expect<rdzv::Closed>();
  first->send_message(rdzv::Leave{{}, "done"});
  auto late = connect(2);
  late->join(nnodes(1, 1));
  const auto round = late->expect<rdzv::Round>();
  EXPECT_EQ(round.record->generation, 2u) << "the session of the first is still open";
}

TEST_F(TurnedCoordinatorTest, JobsAreIndependent) {
  start();
  std::vector<std::unique_ptr<SessionClient>> nodes;
  for (int job = 0; job < 20; ++job) {
    nodes.push_back(connect(1, "job" + std::to_string(job)));  // the same node id in each
    nodes.back()->join(nnodes(1, 1));
  }
  for (const auto& node : nodes) EXPECT_EQ(node->expect<rdzv::Round>().record->nodes, 1);
  EXPECT_EQ(coordinator->stats().jobs, 20u);
}

TEST_F(TurnedCoordinatorTest, NodesThatWaitLearnOfNodesThatWaitForAnotherJob) {
  start();
  const auto right = connect(1, "1111");
  right->join(nnodes(2, 2));
  EXPECT_THAT(right->expect<rdzv::Waiting>().message, Not(HasSubstr("job")));
  const auto wrong = connect(2, "2222");
  wrong->join(nnodes(2, 2));
  EXPECT_THAT(wrong->expect<rdzv::Waiting>().message,
              HasSubstr("; 1 node of job 1111 waits here, too (is --rdzv-id the same"));
  EXPECT_THAT(right->expect<rdzv::Waiting>().message, HasSubstr("; 1 node of job 2222 waits here"))
      << "with the next message";
  wrong->expect<rdzv::Waiting>();  // sent at the same time
  const auto other = connect(3, "1111");
  other->join(nnodes(2, 2));
  EXPECT_EQ(right->expect<rdzv::Round>().record->nodes, 2);
  EXPECT_THAT(wrong->expect<rdzv::Waiting>().message, Not(HasSubstr("1111"))) << "which runs";
}

TEST_F(TurnedCoordinatorTest, PortServesTheUsersStore) {
  start();
  TestClient store(coordinator->port());
  store.validate();
  store.set("/k", "v");
  EXPECT_EQ(store.get("/k"), "v");
  EXPECT_EQ(store.num_keys(), 1) << "membership is not kept there";
}

// With static ranks the workers' store is the endpoint itself.
TEST_F(TurnedCoordinatorTest, ARoundWhoseStoreIsTheEndpointBeginsWithAnEmptyOne) {
  start();
  TestClient worker(coordinator->port());
  worker.validate();
  worker.set("/stale", "1");
  EXPECT_TRUE(worker.ping());
  const auto node = connect(1);
  node->info.hosts_coordinator = true;
  node->info.store_port = coordinator->port();
  node->join(nnodes(1, 1));
  node->expect<rdzv::Round>();
  EXPECT_TRUE(worker.is_closed());
  TestClient next(coordinator->port());
  next.validate();
  EXPECT_EQ(next.num_keys(), 0);
}

TEST_F(TurnedCoordinatorTest, RoundWithItsOwnStoreKeepsTheUsersKeys) {
  start();
  TestClient user(coordinator->port());
  user.validate();
  user.set("/k", "v");
  EXPECT_TRUE(user.ping());
  run_round(2, nnodes(2, 2));
  EXPECT_EQ(user.get("/k"), "v");
}

TEST(Coordinator, PlainStoreIsNotACoordinator) {
  auto server = StoreServer::start({});
  ASSERT_TRUE(server.ok());
  TestClient client((*server)->port());
  client.validate();
  client.send(TestClient::list_frame(wire::Opcode::kCheck, {std::string(session::kReservedKey)}));
  EXPECT_EQ(client.receive(1), std::string(1, wire::kNotReady));
}

}  // namespace
}  // namespace elastic::host
