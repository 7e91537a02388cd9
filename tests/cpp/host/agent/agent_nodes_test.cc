// Agents of several nodes, in one process, with one coordinator and real workers. Launchers of
// several nodes are tested in tests/python/process/test_nodes.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "host/agent/agent_harness.h"
#include "host/base/tcp_proxy.h"

namespace elastic {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using support::RunningAgent;
using support::ScratchDir;
using support::shell;
using support::stub_worker;
using ::testing::HasSubstr;
using Kind = AgentEvent::Kind;

class AgentNodes : public support::AgentsOfAJob {
 protected:
  // A node with two such workers in a job of min..max nodes.
  AgentOptions node(const WorkerTemplate& worker, int min_nodes, int max_nodes) const {
    AgentOptions options = AgentsOfAJob::node({worker, worker}, min_nodes, max_nodes);
    JobSettings& settings = options.rendezvous.settings;
    settings.last_call_timeout = seconds(60);  // for a node that joins late
    settings.settle = Duration::zero();
    settings.node_timeout = seconds(30);
    return options;
  }
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

}  // namespace
}  // namespace elastic
