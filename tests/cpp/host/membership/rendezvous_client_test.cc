#include "elastic/rendezvous_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "elastic/coordinator.h"
#include "elastic/store_client.h"
#include "os/loop/clock.h"
#include "support/eventually.h"

namespace elastic {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr Duration kTestTimeout = 60s;

Instant soon() { return os::monotonic_now() + kTestTimeout; }

class RendezvousClientTest : public ::testing::Test {
 protected:
  using Rounds = std::vector<Result<RendezvousRound>>;

  std::unique_ptr<RendezvousClient> client(int min_nodes, int max_nodes,
                                           Duration last_call_timeout = 0s) {
    RendezvousClientOptions options;
    options.run_id = "job";
    JobSettings& settings = options.rendezvous.settings;
    settings.min_nodes = min_nodes;
    settings.max_nodes = max_nodes;
    settings.last_call_timeout = last_call_timeout;
    settings.settle = 0s;
    settings.node_timeout = 60s;
    options.rendezvous.endpoint_host = "127.0.0.1";
    options.rendezvous.endpoint_port = coordinator_->port();
    options.rendezvous.is_host = false;
    return *RendezvousClient::start(options);
  }
  // All callers request a round at once.
  Rounds next_of_all(const std::vector<RendezvousClient*>& clients) {
    std::vector<std::future<Result<RendezvousRound>>> calls;
    for (RendezvousClient* one : clients) {
      calls.push_back(
          std::async(std::launch::async, [one] { return one->next_rendezvous(soon()); }));
    }
    Rounds rounds;
    for (auto& call : calls) rounds.push_back(call.get());
    return rounds;
  }
  void expect_same_round(const Rounds& rounds, std::uint64_t number) {
    for (const auto& round : rounds) {
      ASSERT_TRUE(round.ok()) << round.status().message();
      EXPECT_EQ(round->record, rounds.front()->record);
      EXPECT_EQ(round->record.round, number);
    }
  }
  bool sees_waiting(RendezvousClient* one) {
    return support::eventually([one] { return one->waiting_nodes() > 0; });
  }

  std::unique_ptr<Coordinator> coordinator_ = *Coordinator::start({});
};

TEST_F(RendezvousClientTest, AllNodesReceiveOneRoundWithAStore) {
  auto a = client(2, 2), b = client(2, 2);
  const Rounds rounds = next_of_all({a.get(), b.get()});
  expect_same_round(rounds, 1);
  EXPECT_NE(rounds[0]->own.group_rank, rounds[1]->own.group_rank);
  EXPECT_EQ(a->waiting_nodes(), 0);
  EXPECT_EQ(a->address(), "127.0.0.1");
  const RoundRecord& record = rounds[0]->record;
  auto store = StoreClient::connect({.host = record.master_addr,
                                     .port = record.master_port,
                                     .timeout = kTestTimeout,
                                     .interrupted = {}});
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_TRUE((*store)->ping().ok());
}

TEST_F(RendezvousClientTest, SecondCallEndsTheRoundAndTheNextStoreIsEmpty) {
  auto a = client(2, 2), b = client(2, 2);
  const Rounds first = next_of_all({a.get(), b.get()});
  expect_same_round(first, 1);
  const Rounds second = next_of_all({a.get(), b.get()});
  expect_same_round(second, 2);
  EXPECT_EQ(second[0]->own.group_rank, first[0]->own.group_rank);
  EXPECT_NE(second[0]->record.master_port, first[0]->record.master_port);
}

TEST_F(RendezvousClientTest, APeerThatAsksAgainShowsAsWaiting) {
  auto a = client(2, 2), b = client(2, 2);
  expect_same_round(next_of_all({a.get(), b.get()}), 1);
  auto asked = std::async(std::launch::async, [&] { return b->next_rendezvous(soon()); });
  ASSERT_TRUE(sees_waiting(a.get()));
  EXPECT_EQ(a->next_rendezvous(soon())->record.round, 2u);
  EXPECT_EQ(asked.get()->record.round, 2u);
}

TEST_F(RendezvousClientTest, TimeoutNamesWhatWasMissingAndKeepsTheJoin) {
  auto a = client(2, 2), b = client(2, 2);
  Status none;
  EXPECT_TRUE(
      support::eventually([&] {  // the first may end before the coordinator's answer to the join
        none = a->next_rendezvous(os::monotonic_now() + 200ms).status();
        return none.message().find("1 of 2 nodes joined (") != std::string_view::npos;
      }));
  EXPECT_EQ(none.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(none.message(), HasSubstr("no round within the timeout"));
  EXPECT_TRUE(b->next_rendezvous(soon()).ok());
  EXPECT_EQ(a->next_rendezvous(soon())->record.round, 1u);
}

TEST_F(RendezvousClientTest, UnclaimedRoundEndsByItself) {
  auto a = client(2, 2), b = client(2, 2);
  EXPECT_FALSE(a->next_rendezvous(os::monotonic_now()).ok());
  expect_same_round(next_of_all({b.get()}), 1);
  auto asked = std::async(std::launch::async, [&] { return b->next_rendezvous(soon()); });
  auto round = a->next_rendezvous(soon());
  // Whether a takes round 1 before it receives its end is a race.
  if (round.ok() && round->record.round == 1) round = a->next_rendezvous(soon());
  EXPECT_EQ(round->record.round, 2u);
  EXPECT_EQ(asked.get()->record.round, 2u);
}

TEST_F(RendezvousClientTest, AClosedJobIsClosedForAll) {
  auto a = client(2, 2), b = client(2, 2);
  expect_same_round(next_of_all({a.get(), b.get()}), 1);
  EXPECT_FALSE(b->is_closed());
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
  result.message = "enough";
  a->set_closed(result);
  EXPECT_TRUE(a->is_closed());
  const auto none = b->next_rendezvous(soon());
  EXPECT_EQ(none.status().code(), StatusCode::kAborted);
  EXPECT_THAT(none.status().message(), HasSubstr("enough"));
  EXPECT_TRUE(b->is_closed());
  EXPECT_EQ(b->result()->message, "enough");
}

TEST_F(RendezvousClientTest, LeaveEndsAWaitAndIsAcknowledged) {
  auto a = client(1, 2, 60s), b = client(1, 2, 60s);  // however late one of them joins
  expect_same_round(next_of_all({a.get(), b.get()}), 1);
  auto asked = std::async(std::launch::async, [&] { return b->next_rendezvous(soon()); });
  ASSERT_TRUE(sees_waiting(a.get()));
  EXPECT_TRUE(b->leave("SIGTERM", kTestTimeout));
  EXPECT_EQ(asked.get().status().code(), StatusCode::kFailedPrecondition);
  const auto alone = a->next_rendezvous(soon());
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->record.nodes, 1);
  EXPECT_TRUE(b->leave("again", kTestTimeout));
}

// The node of rank 0 serves the store: when the job is over it leaves after the others have
// stopped.
TEST_F(RendezvousClientTest, ALeaveCanBeInterruptedAndAFurtherCallWaitsForIt) {
  auto a = client(2, 2), b = client(2, 2);
  const auto rounds = next_of_all({a.get(), b.get()});
  const bool is_a_first = rounds[0]->own.group_rank == 0;
  auto& first = is_a_first ? a : b;
  auto& second = is_a_first ? b : a;
  JobResult result;
  result.cause = JobCause::kRequested;
  first->set_closed(result);
  ASSERT_TRUE(support::eventually([&] { return first->result().has_value(); }));
  int polls = 0;
  EXPECT_FALSE(first->leave("SIGTERM", kTestTimeout, [&] { return ++polls > 0; }));
  EXPECT_EQ(polls, 1);
  EXPECT_FALSE(first->leave("again", kTestTimeout, [] { return true; })) << "it has not left yet";
  auto left = std::async(std::launch::async, [&] { return first->leave("again", kTestTimeout); });
  second->leave("SIGTERM", kTestTimeout);
  EXPECT_TRUE(left.get());
}

TEST_F(RendezvousClientTest, AnInterruptedWaitIsCancelled) {
  auto a = client(2, 2);
  const auto waiter = ::pthread_self();
  struct sigaction action {
  }, saved{};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, &saved);
  std::atomic<bool> is_over = false;
  std::thread nagger([&] {
    while (!is_over) ::pthread_kill(waiter, SIGUSR1);
  });
  const auto none = a->next_rendezvous(soon(), [] { return true; });
  is_over = true;
  nagger.join();
  ::sigaction(SIGUSR1, &saved, nullptr);
  EXPECT_EQ(none.status().code(), StatusCode::kCancelled);
}

TEST_F(RendezvousClientTest, NodeWithOtherSettingsIsRejectedAndTheOthersContinue) {
  auto a = client(2, 2), b = client(2, 3), c = client(2, 2);
  EXPECT_FALSE(a->next_rendezvous(os::monotonic_now()).ok());
  ASSERT_TRUE(support::eventually([&] { return !a->take_log_lines().empty(); }));
  const auto refused = b->next_rendezvous(soon());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("nnodes=2:3"));
  EXPECT_TRUE(c->next_rendezvous(soon()).ok());
}

TEST_F(RendezvousClientTest, BadOptionsAreAnErrorAtTheStart) {
  RendezvousClientOptions options;
  options.rendezvous.settings.min_nodes = 3;
  EXPECT_EQ(RendezvousClient::start(options).status().code(), StatusCode::kInvalidArgument);
  options.rendezvous.settings.min_nodes = 1;
  options.local_world_size = 0;
  EXPECT_EQ(RendezvousClient::start(options).status().code(), StatusCode::kInvalidArgument);
  options.local_world_size = 1;
  options.role = std::string(kNodeTextBytesMax + 1, 'r');
  EXPECT_EQ(RendezvousClient::start(options).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RendezvousClientTest, SingleNodeNeedsNoOtherNode) {
  auto alone = *RendezvousClient::start({});
  const auto first = alone->next_rendezvous(soon());
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->record.nodes, 1);
  EXPECT_EQ(alone->next_rendezvous(soon())->record.round, 2u);
  EXPECT_TRUE(alone->leave("done", kTestTimeout));
}

TEST_F(RendezvousClientTest, FailsInAForkedChild) {
  auto a = client(1, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_refused =
        a->next_rendezvous(Instant::max()).status().code() == StatusCode::kFailedPrecondition;
    a.reset();
    ::_exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace elastic
