// The store that an agent opens for its workers, tested with a client that acts like a worker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <future>

#include "elastic/store_client.h"
#include "elastic/store_server.h"
#include "host/agent/agent_harness.h"
#include "os/net/listener.h"

namespace elastic {
namespace {

using support::options_of;
using support::run;
using support::RunningAgent;
using support::stub_worker;
using ::testing::HasSubstr;
using Kind = AgentEvent::Kind;

std::unique_ptr<StoreClient> client_of(const RoundInfo& round) {
  StoreClientOptions options;
  options.host = round.master_addr;
  options.port = round.master_port;
  auto client = StoreClient::connect(options);
  EXPECT_TRUE(client.ok()) << client.status().message();
  return client.ok() ? std::move(*client) : nullptr;
}

AgentOptions restartable(std::uint16_t master_port) {
  AgentOptions options = options_of({stub_worker({"pause"}, StreamTarget::kDiscard)});
  options.rendezvous.settings.max_restarts = 1;
  options.master_port = master_port;
  return options;
}

class AgentStore : public ::testing::TestWithParam<bool> {};

TEST_P(AgentStore, IsEmptyInEveryRound) {
  const bool is_fixed = GetParam();
  const auto held = os::ReservedPort::open("", 0);
  ASSERT_TRUE(held.ok());
  RunningAgent agent(restartable(is_fixed ? held->port() : 0));
  const AgentEvent first = agent.wait_for(Kind::kWorkerStarted);
  auto client = client_of(*first.round);
  ASSERT_TRUE(client && client->set("key", "of round 1").ok());
  ::kill(first.pid, SIGKILL);

  const AgentEvent second = agent.wait_for(Kind::kWorkerStarted);
  EXPECT_EQ(first.round->master_port == second.round->master_port, is_fixed);
  auto next_client = client_of(*second.round);
  ASSERT_NE(next_client, nullptr);
  const std::string key[] = {"key"};
  const auto is_there = next_client->check(key);
  ASSERT_TRUE(is_there.ok()) << is_there.status().message();
  EXPECT_FALSE(*is_there);
  agent->request_stop(SIGTERM);
  agent.finish();
}

INSTANTIATE_TEST_SUITE_P(Agent, AgentStore, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "fixed_port" : "fresh_port"; });

TEST(AgentStoreOfTheLastRound, ClosesAfterItsWorkers) {
  RunningAgent agent(restartable(0));
  const AgentEvent first = agent.wait_for(Kind::kWorkerStarted);
  auto client = client_of(*first.round);
  ASSERT_NE(client, nullptr);
  auto end = std::async(std::launch::async, [&client] {
    const std::string never[] = {"never"};
    EXPECT_EQ(client->wait(never, std::chrono::seconds(60)).code(), StatusCode::kUnavailable);
    return os::monotonic_now();
  });
  ::kill(first.pid, SIGKILL);
  const AgentEvent exited = agent.wait_for(Kind::kWorkerExited);
  EXPECT_GE(end.get() - exited.exit.at, std::chrono::seconds(1)) << "other nodes still read it";
  agent->request_stop(SIGTERM);
  agent.finish();
}

TEST(AgentStorePort, EndsTheAgentWithoutARetryIfItIsInUse) {
  auto other = StoreServer::start({});
  ASSERT_TRUE(other.ok());
  const AgentResult result = run(restartable((*other)->port()));
  EXPECT_EQ(result.state, AgentState::kFailed);
  EXPECT_EQ(result.exit_code, kExitCannotServe);
  EXPECT_THAT(result.message, HasSubstr(std::to_string((*other)->port())));
}

TEST(AgentStoreAddress, IsANumberForWorkersAlsoIfANameIsGiven) {
  AgentOptions options = restartable(0);
  options.rendezvous.local_addr = "localhost";
  RunningAgent agent(options);
  const AgentEvent started = agent.wait_for(Kind::kWorkerStarted);
  EXPECT_THAT(started.round->master_addr, ::testing::AnyOf("127.0.0.1", "::1"));
  EXPECT_NE(client_of(*started.round), nullptr);
  agent->request_stop(SIGTERM);
  agent.finish();
}

TEST(AgentStoreAddress, EndsTheAgentIfItIsNotOfThisHost) {
  AgentOptions options = restartable(0);
  options.rendezvous.local_addr = "192.0.2.1";  // reserved for documentation (RFC 5737)
  const AgentResult result = run(options);
  EXPECT_EQ(result.exit_code, kExitCannotServe);
  EXPECT_THAT(result.message, HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace elastic
