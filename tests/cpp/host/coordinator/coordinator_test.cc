// The coordinator over real sockets, in virtual time: what nodes receive, its jobs, and the user's
// store. Lost nodes are tested in coordinator_lost_node_test.cc and membership/session_test.cc.

#include "elastic/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

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
  run_round(2, nnodes(2, 2));
  EXPECT_EQ(store.num_keys(), 1) << "membership is not kept there";
  EXPECT_EQ(store.get("/k"), "v") << "the store of the round is another one";
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

}  // namespace
}  // namespace elastic::host
