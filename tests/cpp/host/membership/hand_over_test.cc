// An agent that hosts the coordinator ends in order, and a member of the job goes on with it; or no
// coordinator follows. In virtual time, on one host, so that the job has one voter.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/session/session_wire.h"
#include "host/base/tcp_proxy.h"
#include "host/coordinator/turned_coordinator.h"
#include "host/membership/session_harness.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;

class HandOverTest : public ::testing::TestWithParam<int> {
 protected:
  HandOverTest() {
    held_.push_back(*os::ReservedPort::open("", 0));
    options_ = options_for(held_.back().port(), 1, 3);
    options_.voters = GetParam();
    options_.settings.last_call_timeout = 3s;
    options_.settings.node_timeout = 2s;
    options_.settings.store_grace = 5s;
  }
  void start(std::uint64_t id, bool is_host) {
    RendezvousOptions options = options_;
    options.is_host = is_host;
    nodes_.push_back(std::make_unique<TestNode>(options, id));
    nodes_.back()->join();
  }
  TestNode& node(std::size_t number) { return *nodes_.at(number - 1); }
  void form_round(const std::vector<std::size_t>& members) {
    std::uint64_t round = 0;
    for (const std::size_t number : members) {
      const std::uint64_t formed = node(number).expect_round();
      if (round == 0) round = formed;
      ASSERT_EQ(formed, round);
      ASSERT_EQ(static_cast<std::size_t>(node(number).record().nodes), members.size());
    }
  }
  void end_round(const std::vector<std::size_t>& members) {
    for (const std::size_t number : members) {
      const auto restart = node(number).expect<rdzv::Restart>();
      node(number).send(rdzv::Gone{node(number).info().id, restart.round});
      node(number).join();
    }
  }
  // The proxy is between the node and the coordinator at the endpoint.
  void start_behind(const support::TcpProxy& proxy, std::uint64_t id) {
    RendezvousOptions options = options_;
    options.is_host = false;
    options.endpoint_port = proxy.port();
    nodes_.push_back(std::make_unique<TestNode>(options, id));
    node(id).join();
  }
  // Node 1 hosts the coordinator, and node 2 reaches it through the proxy.
  void form_round_behind(const support::TcpProxy& proxy, const std::vector<std::size_t>& ids) {
    for (const std::size_t id : ids) {
      if (id == 2) {
        start_behind(proxy, id);
      } else {
        start(id, id == 1);
      }
      if (id == 1) node(1).expect<rdzv::Waiting>();
    }
    form_round(ids);
  }
  void expect_end_of_host() {
    EXPECT_TRUE(group_.run_until([&] { return node(1).is_drained(); }, 10s));
    node(1).crash();
  }
  // As on SIGTERM.
  void stop(std::size_t number) {
    node(number).send(rdzv::Leave{node(number).info().id, "it was stopped"});
    EXPECT_TRUE(node(number).drain(5s));
    node(number).crash();
  }
  void expect_success(const std::vector<std::size_t>& members) {
    for (const std::size_t number : members) node(number).done();
    for (const std::size_t number : members) {
      const auto closed = node(number).expect<rdzv::Closed>();
      ASSERT_NE(closed.result, nullptr);
      EXPECT_EQ(closed.result->outcome, JobOutcome::kSucceeded);
    }
  }

  support::LoopGroup group_;
  std::vector<os::ReservedPort> held_;
  RendezvousOptions options_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

INSTANTIATE_TEST_SUITE_P(Voters, HandOverTest, ::testing::Values(0, 1));

TEST_P(HandOverTest, AMemberGoesOnWithTheCoordinatorOfAHostThatIsStopped) {
  start(1, true);
  node(1).expect<rdzv::Waiting>();
  start(2, false);
  start(3, false);
  form_round({1, 2, 3});
  const std::uint64_t first = node(2).record().round;
  stop(1);
  end_round({2, 3});
  form_round({2, 3});
  EXPECT_EQ(node(2).record().round, first + 1);
  // The next one, too, and the last node goes on alone.
  stop(2);
  end_round({3});
  form_round({3});
  EXPECT_EQ(node(3).record().round, first + 2);
  expect_success({3});
}

// The record goes over the voter port, which proves the token as the sessions do.
TEST_P(HandOverTest, AJobWithATokenIsHandedOverToItsOwnNodes) {
  options_.token.text = std::string(32, 's');
  start(1, true);
  node(1).expect<rdzv::Waiting>();
  start(2, false);
  start(3, false);
  form_round({1, 2, 3});
  stop(1);
  end_round({2, 3});
  form_round({2, 3});
  EXPECT_EQ(node(2).record().term, 2U);
  expect_success({2, 3});
}

TEST_P(HandOverTest, ANodeThatStartsAtTheEndpointLaterJoinsTheJob) {
  start(1, true);
  node(1).expect<rdzv::Waiting>();
  start(2, false);
  form_round({1, 2});
  stop(1);
  end_round({2});
  form_round({2});
  start(3, true);  // it begins a job of the same id, until the coordinator reaches it
  end_round({2});
  form_round({2, 3});
  EXPECT_GT(node(3).record().round, 2u);
  expect_success({2, 3});
}

// With one voter the first job has ended with its coordinator, and the next one is another lineage.
TEST_P(HandOverTest, ANodeWhoseCoordinatorWasLostMaySucceedThatOfTheNextJob) {
  start(1, true);
  node(1).expect<rdzv::Waiting>();
  start(2, false);
  form_round({1, 2});
  node(1).crash();
  start(3, true);
  end_round({2});
  form_round({2, 3});
  stop(3);
  end_round({2});
  form_round({2});
  expect_success({2});
}

TEST_P(HandOverTest, AMemberThatCannotRunTheCoordinatorIsPassedOver) {
  options_.settings.min_nodes = 1;
  start(1, true);
  node(1).expect<rdzv::Waiting>();
  // Its ports are all in use.
  RendezvousOptions without_port = options_;
  without_port.is_host = false;
  held_.push_back(*os::ReservedPort::open("", 0));
  without_port.voter_ports = {held_.back().port(), held_.back().port()};
  nodes_.push_back(std::make_unique<TestNode>(without_port, 2));
  node(2).join();
  start(3, false);
  form_round({1, 2, 3});
  stop(1);
  end_round({2, 3});
  form_round({2, 3});
  expect_success({2, 3});
}

// ---- Sessions that break while the job is handed over.

TEST_P(HandOverTest, AMemberThatReturnsMaySucceed) {
  support::TcpProxy proxy(held_.front().port(), &group_);
  form_round_behind(proxy, {1, 2});
  proxy.hold_before("it was stopped");  // why the round ends, which precedes all else
  node(1).send(rdzv::Leave{node(1).info().id, "it was stopped"});
  node(1).begin_drain(5s);
  group_.advance(100ms);
  proxy.cut();
  proxy.release();
  expect_end_of_host();
  end_round({2});
  form_round({2});
  EXPECT_EQ(node(2).record().term, 2U);
  expect_success({2});
}

TEST_P(HandOverTest, AMemberThatIsAwayLearnsOfTheSuccessorWhenItReturns) {
  options_.settings.max_nodes = 4;
  support::TcpProxy proxy(held_.front().port(), &group_);
  form_round_behind(proxy, {1, 2, 3});
  proxy.cut();
  node(1).send(rdzv::Leave{node(1).info().id, "it was stopped"});
  node(1).begin_drain(5s);
  expect_end_of_host();
  end_round({2, 3});
  form_round({2, 3});
  EXPECT_EQ(node(2).record().term, 2U);
  expect_success({2, 3});
}

// A leave that is not in the record of the successor is repeated there.
TEST_P(HandOverTest, ANodeThatLeavesMeanwhileIsNotLost) {
  options_.settings.max_nodes = 4;
  for (const std::size_t id : {1, 2, 3, 4}) {
    start(id, id == 1);
    if (id == 1) node(1).expect<rdzv::Waiting>();
  }
  form_round({1, 2, 3, 4});
  node(1).send(rdzv::Leave{node(1).info().id, "it was stopped"});
  node(1).begin_drain(5s);
  node(3).send(rdzv::Leave{node(3).info().id, "its host is needed elsewhere"});
  node(3).begin_drain(5s);
  expect_end_of_host();
  EXPECT_TRUE(group_.run_until([&] { return node(3).is_drained(); }, 10s));
  node(3).crash();
  end_round({2, 4});
  form_round({2, 4});
  expect_success({2, 4});
}

// ---- The host is killed while it hands the job over, on paths that stall and break.

int num_kill_seeds() {
  const char* const wanted = std::getenv("ELASTIC_HAND_OVER_SEEDS");
  return wanted != nullptr ? std::atoi(wanted) : 30;
}

class KilledHandOverTest : public HandOverTest {
 protected:
  KilledHandOverTest() {
    options_.voters = below(2);
    options_.settings.max_nodes = kNodes;
    options_.settings.reconnect_grace = below(2) == 0 ? 50ms : 1s;
  }
  int below(int limit) { return static_cast<int>(rng_.next() % static_cast<std::uint64_t>(limit)); }
  Duration up_to(Duration longest) { return longest * below(1000) / 1000; }

  void begin() {
    start(1, true);
    node(1).expect<rdzv::Waiting>();
    for (std::size_t id = 2; id <= kNodes; ++id) {
      proxies_.push_back(std::make_unique<support::TcpProxy>(held_.front().port(), &group_));
      start_behind(*proxies_.back(), id);
    }
    form_round({1, 2, 3, 4});
  }
  void disturb(support::TcpProxy* proxy) {
    if (below(3) == 0) {
      proxy->cut();
    } else {
      proxy->stall_for(up_to(700ms));
    }
  }
  void follow(std::size_t number) {
    while (const auto event = node(number).take()) {
      if (const auto* round = std::get_if<rdzv::Round>(&*event)) {
        const RoundRecord& record = *round->record;
        const auto [known, is_new] = rounds_.try_emplace(record.round, record);
        EXPECT_EQ(known->second, record) << "two rounds have one number";
        works_.insert(number);
      } else if (const auto* restart = std::get_if<rdzv::Restart>(&*event)) {
        works_.erase(number);
        node(number).send(rdzv::Gone{node(number).info().id, restart->round});
        node(number).join();
      } else if (std::holds_alternative<rdzv::Evicted>(*event)) {
        works_.erase(number);
        node(number).join();
      } else if (std::holds_alternative<MembershipLost>(*event) ||
                 std::holds_alternative<rdzv::TimedOut>(*event)) {
        works_.erase(number);
        left_.erase(number);
      }
    }
  }
  void run(Duration time) {
    const Instant end = group_.now() + time;
    while (group_.now() < end) {
      group_.advance(5ms);
      for (const std::size_t number : std::set(left_)) follow(number);
    }
  }
  // The nodes that are left are the members of one round.
  bool is_settled() {
    return works_ == left_ && std::all_of(left_.begin(), left_.end(), [this](std::size_t one) {
             const RoundRecord& record = node(one).record();
             return record == node(*left_.begin()).record() &&
                    static_cast<std::size_t>(record.nodes) == left_.size();
           });
  }

  static constexpr std::size_t kNodes = 4;
  Rng rng_{static_cast<std::uint64_t>(GetParam())};
  std::vector<std::unique_ptr<support::TcpProxy>> proxies_;
  std::map<std::uint64_t, RoundRecord> rounds_;
  std::set<std::size_t> left_ = {2, 3, 4};  // have not given up
  std::set<std::size_t> works_ = {2, 3, 4};
};

INSTANTIATE_TEST_SUITE_P(Seeds, KilledHandOverTest, ::testing::Range(1, num_kill_seeds() + 1));

TEST_P(KilledHandOverTest, LeavesOneCoordinatorOrNone) {
  begin();
  for (const auto& proxy : proxies_) {
    if (below(2) == 0) disturb(proxy.get());
  }
  node(1).send(rdzv::Leave{node(1).info().id, "it was stopped"});
  node(1).begin_drain(5s);
  for (int i = below(4); i > 0; --i) {
    run(up_to(300ms));
    disturb(proxies_[static_cast<std::size_t>(below(kNodes - 1))].get());
  }
  run(up_to(200ms));
  node(1).crash();
  // Attempts and waits for a coordinator that never answers end within these.
  const Instant limit =
      group_.now() + options_.settings.store_grace + options_.settings.join_timeout + 10s;
  while (!is_settled() && group_.now() < limit) run(1s);
  ASSERT_TRUE(is_settled()) << works_.size() << " of " << left_.size() << " nodes work";
  std::vector<std::size_t> members(left_.begin(), left_.end());
  expect_success(members);
}

// ---- With several voters: a node that has lost its coordinator asks them for the next one.

enum class Ending { kCloses, kNamesASilentSuccessor, kNamesNone };

class LostCoordinatorTest : public ::testing::TestWithParam<Ending> {
 protected:
  static std::string address_of(const os::Listener& listener) { return listener.address().text(); }
  succession::Incumbent incumbent(std::uint64_t term, const std::string& address) const {
    return {.lineage = {7, 7},
            .term = term,
            .node = {9, term},
            .address = address,
            .voters = {{{9, 9}, address_of(voter_)}}};
  }
  void end_coordinator() {
    const auto stop = [this](std::optional<succession::Incumbent> successor) {
      coordinator_->on_succession(
          succession::StopCoordinator{"its agent was stopped", std::move(successor)});
    };
    switch (GetParam()) {
      case Ending::kCloses: return coordinator_.reset();
      case Ending::kNamesASilentSuccessor: return stop(incumbent(2, address_of(silent_)));
      case Ending::kNamesNone: return stop(std::nullopt);
    }
  }
  bool is_voter_asked() {
    os::UniqueFd connection;
    return voter_.accept(&connection) == os::Listener::AcceptStatus::kAccepted;
  }

  support::LoopGroup group_;
  os::Listener voter_ = *os::Listener::open("127.0.0.1", 0);
  os::Listener silent_ = *os::Listener::open("127.0.0.1", 0);  // connections stay in its queue
  std::unique_ptr<TurnedCoordinator> coordinator_ = *TurnedCoordinator::start(
      {.host = "127.0.0.1"}, {.job = "job", .feed = [](const succession::Event&) {}});
};

INSTANTIATE_TEST_SUITE_P(Endings, LostCoordinatorTest,
                         ::testing::Values(Ending::kCloses, Ending::kNamesASilentSuccessor,
                                           Ending::kNamesNone));

// Longer than an attempt: the node is directed to the silent process more than once.
TEST_P(LostCoordinatorTest, IsJudgedLostAfterReconnectGraceHoweverTheSessionEnds) {
  RendezvousOptions options = options_for(coordinator_->port(), 1, 1);
  options.voters = 0;
  options.settings.node_timeout = 1s;
  options.settings.reconnect_grace = 10s;
  TestNode node(options, 1);
  node.join();
  node.expect_round();
  const std::string here = "127.0.0.1:" + std::to_string(coordinator_->port());
  coordinator_->on_succession(succession::Inform{incumbent(1, here)});
  group_.advance(5s);
  EXPECT_FALSE(is_voter_asked());
  end_coordinator();
  const Duration grace = options.settings.reconnect_grace;
  group_.advance(grace - 1ms);
  EXPECT_FALSE(is_voter_asked());
  EXPECT_TRUE(group_.run_until([this] { return is_voter_asked(); }, 1s));
}

}  // namespace
}  // namespace elastic::host
