// Agents of several nodes, in one process, with one coordinator and real workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "elastic/coordinator.h"
#include "host/agent/agent_harness.h"
#include "host/base/tcp_proxy.h"
#include "host/membership/membership.h"
#include "os/net/address.h"
#include "os/net/held_port.h"

namespace elastic {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using support::Fifo;
using support::RunningAgent;
using support::ScratchDir;
using support::shell;
using support::stub_worker;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = AgentEvent::Kind;

class AgentNodes : public ::testing::Test {
 protected:
  AgentNodes() {
    auto coordinator = Coordinator::start({});
    EXPECT_TRUE(coordinator.ok()) << coordinator.status().message();
    coordinator_ = *std::move(coordinator);
  }

  // A node with two such workers in a job of min..max nodes.
  AgentOptions node(const WorkerTemplate& worker, int min_nodes, int max_nodes) const {
    AgentOptions options = support::options_of({worker, worker});
    options.rendezvous.endpoint_host = "127.0.0.1";
    options.rendezvous.endpoint_port = coordinator_->port();
    options.rendezvous.is_host = false;
    JobSettings& settings = options.rendezvous.settings;
    settings.min_nodes = min_nodes;
    settings.max_nodes = max_nodes;
    settings.last_call_timeout = seconds(60);  // for a node that joins late
    settings.settle = Duration::zero();
    settings.node_timeout = seconds(30);
    return options;
  }

  std::unique_ptr<Coordinator> coordinator_;
};

int world_of(const AgentEvent& event) { return event.round->workers.front().world_size; }

TEST_F(AgentNodes, RestartTogetherWithTheirRanksWhenAWorkerFails) {
  AgentOptions options = node(shell("test $TORCHELASTIC_RESTART_COUNT = 1 || test $RANK != 1 || "
                                    "exit 3; test $TORCHELASTIC_RESTART_COUNT = 1 || "
                                    "exec sleep 1000"),
                              2, 2);
  options.rendezvous.settings.max_restarts = 1;
  RunningAgent a(options);
  RunningAgent b(options);
  EXPECT_EQ(a.finish().exit_code, 0);
  EXPECT_EQ(b.finish().exit_code, 0);
  const auto rounds_of_a = a.all(Kind::kRoundStarting);
  const auto rounds_of_b = b.all(Kind::kRoundStarting);
  ASSERT_EQ(rounds_of_a.size(), 2u);
  ASSERT_EQ(rounds_of_b.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const RoundInfo& one = *rounds_of_a[i].round;
    const RoundInfo& other = *rounds_of_b[i].round;
    EXPECT_EQ(one.round, i + 1);
    EXPECT_EQ(one.round, other.round);
    EXPECT_EQ(one.restart_count, static_cast<int>(i));
    EXPECT_EQ(other.restart_count, static_cast<int>(i));
    EXPECT_EQ(one.master_addr, other.master_addr);
    EXPECT_EQ(one.master_port, other.master_port);
    EXPECT_EQ(one.group_world_size, 2);
    EXPECT_EQ(one.group_rank + other.group_rank, 1);
    EXPECT_EQ(one.group_rank, rounds_of_a[0].round->group_rank);
    EXPECT_EQ(world_of(rounds_of_a[i]), 4);
  }
  EXPECT_NE(rounds_of_a[0].round->master_port, rounds_of_a[1].round->master_port);
  const auto restarts = b.all(Kind::kRestarting);
  ASSERT_EQ(restarts.size(), 1u);
  EXPECT_THAT(restarts[0].message,
              HasSubstr("exited with code 3; restarting with 2 nodes, 0 of 1"));
}

TEST_F(AgentNodes, EndTogetherWithOneCauseWhenTheBudgetIsSpent) {
  const AgentOptions options = node(shell("test $RANK != 3 || exit 7; exec sleep 1000"), 3, 3);
  RunningAgent agents[] = {RunningAgent(options), RunningAgent(options), RunningAgent(options)};
  std::vector<std::string> nodes;
  int with_failures = 0;
  for (RunningAgent& agent : agents) {
    const AgentResult& result = agent.finish();
    EXPECT_EQ(result.exit_code, 7);
    EXPECT_EQ(result.state, AgentState::kFailed);
    ASSERT_TRUE(result.job);
    EXPECT_EQ(result.job->cause, JobCause::kWorker);
    EXPECT_EQ(result.job->rank, 3);
    EXPECT_THAT(result.message, HasSubstr("rank 3 "));
    nodes.push_back(result.job->node);
    with_failures += static_cast<int>(result.failures.size());
  }
  EXPECT_EQ(nodes[0], nodes[1]);
  EXPECT_EQ(nodes[0], nodes[2]);
  EXPECT_EQ(with_failures, 1);
}

TEST_F(AgentNodes, EndTogetherWhenAProgramCannotBeExecutedOnOne) {
  AgentOptions good = node(stub_worker({"pause"}, StreamTarget::kDiscard), 2, 2);
  good.rendezvous.settings.max_restarts = 5;
  AgentOptions bad = good;
  bad.workers[1].argv = {"/no/such/program"};
  RunningAgent a(good);
  RunningAgent b(bad);
  EXPECT_EQ(a.finish().exit_code, kExitCannotStart);
  EXPECT_EQ(b.finish().exit_code, kExitCannotStart);
  EXPECT_THAT(a.all(Kind::kRestarting), IsEmpty());
}

TEST_F(AgentNodes, ContinueWithoutANodeThatWasStopped) {
  const AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 1, 2);
  RunningAgent a(options);
  RunningAgent b(options);
  a.wait_for(Kind::kWorkersRunning);
  b.wait_for(Kind::kWorkersRunning);
  a->request_stop(SIGTERM);
  EXPECT_THAT(b.wait_for(Kind::kRestarting).message, EndsWith("restarting with 1 node"));
  const AgentEvent running = b.wait_for(Kind::kWorkersRunning);
  EXPECT_EQ(world_of(running), 2);
  EXPECT_EQ(running.round->restart_count, 0);
  EXPECT_EQ(running.round->membership_changes, 1);
  EXPECT_EQ(a.finish().exit_code, 128 + SIGTERM);
  EXPECT_EQ(a->result().job, std::nullopt) << "it left before the end";
  b->request_stop(SIGTERM);
  EXPECT_EQ(b.finish().exit_code, 128 + SIGTERM);
}

TEST_F(AgentNodes, RecallADoneNodeWhenAWorkerFails) {
  const ScratchDir dir;
  // Node rank 0 is done at once; the other one fails once, when the test signals it.
  const std::string script =
      "test $GROUP_RANK = 0 || test $TORCHELASTIC_RESTART_COUNT = 1 || { "
      "read line < " +
      (dir / "go") + "; exit 3; }";
  ASSERT_EQ(::mkfifo((dir / "go").c_str(), 0600), 0);
  AgentOptions options = node(shell(script), 2, 2);
  options.workers.resize(1);
  options.rendezvous.settings.max_restarts = 1;
  RunningAgent a(options);
  RunningAgent b(options);
  const bool is_a_first = a.wait_for(Kind::kRoundStarting).round->group_rank == 0;
  RunningAgent& done = is_a_first ? a : b;
  RunningAgent& failing = is_a_first ? b : a;
  while (done.wait_for(Kind::kProgress).state != AgentState::kSucceeded) {
    ASSERT_FALSE(HasFailure());  // an earlier failure shows what the round waited for
  }
  std::ofstream(dir / "go") << "\n";
  EXPECT_EQ(done.finish().exit_code, 0);
  EXPECT_EQ(failing.finish().exit_code, 0);
  EXPECT_EQ(done.all(Kind::kRoundStarting).size(), 2u);
}

TEST_F(AgentNodes, ReleaseADoneNodeAtTheExitBarrierTimeout) {
  AgentOptions options = node(shell("test $GROUP_RANK = 0 || exec sleep 1000"), 2, 2);
  options.exit_barrier_timeout = milliseconds(50);
  RunningAgent a(options);
  RunningAgent b(options);
  const bool is_a_first = a.wait_for(Kind::kRoundStarting).round->group_rank == 0;
  RunningAgent& done = is_a_first ? a : b;
  RunningAgent& working = is_a_first ? b : a;
  EXPECT_EQ(done.finish().exit_code, 0);
  EXPECT_EQ(done->result().state, AgentState::kSucceeded);
  working->request_stop(SIGTERM);
  working.finish();
}

TEST_F(AgentNodes, EndASpareWithSuccess) {
  const ScratchDir dir;
  ASSERT_EQ(::mkfifo((dir / "go").c_str(), 0600), 0);
  AgentOptions options = node(shell("read line < " + (dir / "go")), 1, 1);
  options.workers.resize(1);
  RunningAgent member(options);
  member.wait_for(Kind::kWorkersRunning);
  RunningAgent spare(options);
  EXPECT_EQ(spare.wait_for(Kind::kProgress).state, AgentState::kInit);
  std::ofstream(dir / "go") << "\n";
  EXPECT_EQ(member.finish().exit_code, 0);
  EXPECT_EQ(spare.finish().exit_code, 0);
  EXPECT_EQ(spare->result().state, AgentState::kSucceeded);
  EXPECT_THAT(spare.all(Kind::kRoundStarting), IsEmpty());
}

TEST_F(AgentNodes, LeaveAtOnceAfterASignalIfTheyWaitForTheNextRound) {
  AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 2, 2);
  options.rendezvous.settings.max_restarts = 1;
  options.inplace_grace = seconds(5);
  RunningAgent a(options);
  RunningAgent b(options);
  a.wait_for(Kind::kWorkersRunning);
  b.wait_for(Kind::kWorkersRunning);
  a->request_stop(SIGTERM);
  while (b.wait_for(Kind::kProgress).state != AgentState::kInit) ASSERT_FALSE(HasFailure());
  b->request_drain(SIGTERM, hours(1));
  EXPECT_EQ(b.finish().exit_code, 128 + SIGTERM) << "no rank of it could reach a step";
  a.finish();
}

TEST_F(AgentNodes, ReplaceALeavingNodeByASpare) {
  const AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 2, 2);
  RunningAgent a(options);
  RunningAgent b(options);
  const int rank = a.wait_for(Kind::kWorkersRunning).round->group_rank;
  RunningAgent spare(options);
  spare.wait_for(Kind::kProgress);
  a->request_stop(SIGTERM);
  EXPECT_EQ(spare.wait_for(Kind::kWorkersRunning).round->group_rank, rank);
  a.finish();
  b->request_stop(SIGTERM);
  spare->request_stop(SIGTERM);
}

TEST_F(AgentNodes, SendTheResultToALateNode) {
  const ScratchDir dir;
  Fifo fifo(dir / "fifo");
  ASSERT_EQ(::mkfifo((dir / "go").c_str(), 0600), 0);
  AgentOptions options = node(shell("read line < " + (dir / "go") + "; exit 9"), 1, 1);
  // Its sibling is slow to stop, so the job ends (after node_timeout) while a node is still
  // connected.
  options.workers[0] = shell("trap '' TERM; echo ready > " + fifo.path() + "; exec sleep 1000");
  options.stop_grace = hours(1);
  options.rendezvous.settings.node_timeout = seconds(5);
  RunningAgent member(options);
  EXPECT_EQ(fifo.next_line(), "ready");
  std::ofstream(dir / "go") << "\n";
  EXPECT_THAT(member.wait_for(Kind::kStopping).message, HasSubstr("exited with code 9"));
  RunningAgent late(options);
  EXPECT_EQ(late.finish().exit_code, 9);
  EXPECT_THAT(late->result().message, HasSubstr("rank 1 on " + os::host_name() + "_"));
  EXPECT_THAT(late.all(Kind::kRoundStarting), IsEmpty());
  while (member.wait_for(Kind::kProgress).state != AgentState::kFailed) {
    ASSERT_FALSE(HasFailure());  // other messages are about the connection
  }
  for (int i = 0; i < 3; ++i) member->request_stop(SIGTERM);
  EXPECT_EQ(member.finish().exit_code, 9);
}

TEST_F(AgentNodes, ReadmitAnEvictedNodeThatLives) {
  support::TcpProxy proxy(coordinator_->port());
  AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 1, 2);
  options.rendezvous.settings.node_timeout = seconds(6);  // for the pauses of the other node, too
  RunningAgent a(options);
  options.rendezvous.endpoint_port = proxy.port();
  RunningAgent b(options);
  a.wait_for(Kind::kWorkersRunning);
  b.wait_for(Kind::kWorkersRunning);
  proxy.stall_for(hours(1));
  EXPECT_EQ(world_of(a.wait_for(Kind::kWorkersRunning)), 2) << "alone";
  proxy.stall_for(Duration::zero());
  EXPECT_THAT(b.wait_for(Kind::kStopping).message, HasSubstr("the other nodes continued without"));
  const AgentEvent together = b.wait_for(Kind::kWorkersRunning);
  EXPECT_EQ(world_of(together), 4);
  EXPECT_EQ(together.round->restart_count, 0);
  EXPECT_EQ(world_of(a.wait_for(Kind::kWorkersRunning)), 4);
}

TEST_F(AgentNodes, StopABrokenGroupWithoutAnAnswer) {
  support::TcpProxy proxy(coordinator_->port());
  const ScratchDir dir;
  ASSERT_EQ(::mkfifo((dir / "go").c_str(), 0600), 0);
  AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 2, 2);
  options.rendezvous.settings.max_restarts = 1;
  RunningAgent a(options);
  options.rendezvous.endpoint_port = proxy.port();
  options.workers[0] = shell("test $TORCHELASTIC_RESTART_COUNT = 1 || read line < " + (dir / "go") +
                             "; test $TORCHELASTIC_RESTART_COUNT = 1 && "
                             "exec sleep 1000; exit 3");
  RunningAgent b(options);
  a.wait_for(Kind::kWorkersRunning);
  b.wait_for(Kind::kWorkersRunning);
  proxy.stall_for(hours(1));
  std::ofstream(dir / "go") << "\n";
  EXPECT_THAT(b.wait_for(Kind::kStopping).message, HasSubstr("no answer from the coordinator"));
  proxy.stall_for(Duration::zero());
  EXPECT_EQ(b.wait_for(Kind::kWorkersRunning).round->restart_count, 1);
  EXPECT_EQ(a.wait_for(Kind::kWorkersRunning).round->restart_count, 1);
}

TEST_F(AgentNodes, EndWhenTheCoordinatorIsLost) {
  AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 2, 2);
  options.rendezvous.settings.store_grace = milliseconds(300);
  RunningAgent a(options);
  RunningAgent b(options);
  a.wait_for(Kind::kWorkersRunning);
  b.wait_for(Kind::kWorkersRunning);
  coordinator_.reset();
  EXPECT_EQ(a.finish().exit_code, kExitCoordinatorLost);
  EXPECT_EQ(b.finish().exit_code, kExitCoordinatorLost);
  EXPECT_EQ(a->result().state, AgentState::kFailed);
}

TEST_F(AgentNodes, EndTheHostOfTheCoordinatorLast) {
  const ScratchDir dir;
  Fifo fifo(dir / "fifo");
  ASSERT_EQ(::mkfifo((dir / "go").c_str(), 0600), 0);
  AgentOptions options = node(stub_worker({"pause"}, StreamTarget::kDiscard), 2, 2);
  const auto held = os::HeldPort::open("", 0);
  ASSERT_TRUE(held.ok());
  options.rendezvous.endpoint_port = held->port();
  options.stop_grace = seconds(1);
  options.rendezvous.is_host = true;
  RunningAgent host(options);
  options.rendezvous.is_host = false;
  options.workers[0] = shell("trap '' TERM; echo ready > " + fifo.path() + "; exec sleep 1000");
  options.workers[1] = shell("read line < " + (dir / "go") + "; exit 9");
  RunningAgent guest(options);
  EXPECT_EQ(fifo.next_line(), "ready");
  std::ofstream(dir / "go") << "\n";
  EXPECT_EQ(guest.finish().exit_code, 9);
  EXPECT_EQ(host.finish().exit_code, 9);
  const auto exits = guest.all(Kind::kWorkerExited);
  ASSERT_EQ(exits.size(), 2u);
  EXPECT_EQ(exits[1].exit.signal, SIGKILL);
  EXPECT_GT(host.seen.back().at, exits[1].exit.at);
}

}  // namespace
}  // namespace elastic
