// Sessions with a real coordinator, over real sockets, in virtual time.

#include "host/membership/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "elastic/agent.h"
#include "elastic/store_server.h"
#include "host/base/scripted_server.h"
#include "host/base/tcp_proxy.h"
#include "host/coordinator/turned_coordinator.h"
#include "host/membership/session_harness.h"
#include "os/loop/thread.h"
#include "os/net/listener.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using elastic::support::ScriptedPeer;
using elastic::support::ScriptedServer;
using elastic::support::TcpProxy;
using support::LoopGroup;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SessionTest : public ::testing::Test {
 protected:
  void start_coordinator(std::uint16_t port = 0) {
    coordinator_ = *TurnedCoordinator::start({.host = "127.0.0.1", .port = port});
  }
  // A port on which nothing listens, and that no other program takes.
  std::uint16_t hold_port() {
    held_.push_back(*os::ReservedPort::open("", 0));
    return held_.back().port();
  }
  void form_round(TestNode* a, TestNode* b) {
    a->join();
    b->join();
    ASSERT_NE(a->expect_round(), 0u);
    ASSERT_EQ(b->expect_round(), a->record().round);
    ASSERT_EQ(a->record(), b->record());
  }
  // The round was not affected, else it could not end like this.
  void expect_success(TestNode* a, TestNode* b) {
    a->done();
    b->done();
    for (TestNode* node : {a, b}) {
      const auto closed = node->expect<rdzv::Closed>();
      ASSERT_NE(closed.result, nullptr);
      EXPECT_EQ(closed.result->outcome, JobOutcome::kSucceeded);
    }
  }
  MembershipLost lost_of(const RendezvousOptions& options) {
    return TestNode(options, 1).expect<MembershipLost>();
  }
  // Of a node whose peer runs on a thread.
  MembershipLost lost_to_a_thread(std::uint16_t port) {
    TestNode node(options_for(port), 1);
    EXPECT_TRUE(node.awaits<MembershipLost>());
    return node.expect<MembershipLost>();
  }

  LoopGroup group_;
  std::vector<os::ReservedPort> held_;
  std::unique_ptr<TurnedCoordinator> coordinator_;
};

TEST_F(SessionTest, TwoNodesFormARoundAndSucceed) {
  start_coordinator();
  TestNode a(options_for(coordinator_->port()), 1);
  TestNode b(options_for(coordinator_->port()), 2);
  form_round(&a, &b);
  EXPECT_EQ(a.info().address, "127.0.0.1");
  EXPECT_EQ(a.record().coordinator_rank, -1);
  expect_success(&a, &b);
}

// It starts its workers first (--inplace-prepare), and would join when the others are gone.
TEST_F(SessionTest, ANodeThatHasNotJoinedWhenTheJobEndsReceivesItsResult) {
  start_coordinator();
  TestNode late(options_for(coordinator_->port()), 3);
  late.introduce();
  TestNode a(options_for(coordinator_->port()), 1);
  TestNode b(options_for(coordinator_->port()), 2);
  form_round(&a, &b);
  expect_success(&a, &b);
  const auto closed = late.expect<rdzv::Closed>();
  ASSERT_NE(closed.result, nullptr);
  EXPECT_EQ(closed.result->outcome, JobOutcome::kSucceeded);
  late.begin_drain();
  EXPECT_TRUE(group_.run_until([&] { return late.is_drained(); }, 1s));
}

TEST_F(SessionTest, FirstToBindTheEndpointHostsAndTheNextIsAClient) {
  RendezvousOptions options = options_for(hold_port());
  options.is_host.reset();
  TestNode a(options, 1);
  a.info().address = a.expect<MembershipReady>().address;
  TestNode b(options, 2);
  form_round(&a, &b);
  EXPECT_GE(a.record().coordinator_rank, 0);
  expect_success(&a, &b);
}

TEST_F(SessionTest, HostExitsLast) {
  RendezvousOptions options = options_for(hold_port());
  options.is_host.reset();
  TestNode host(options, 1);
  host.info().address = host.expect<MembershipReady>().address;
  auto other = std::make_unique<TestNode>(options, 2);
  form_round(&host, other.get());
  expect_success(&host, other.get());
  host.send(rdzv::Leave{host.info().id, "the job is over"});
  host.begin_drain();
  group_.advance(30s);
  EXPECT_FALSE(host.is_drained());
  other->send(rdzv::Leave{other->info().id, "the job is over"});
  EXPECT_TRUE(other->drain());
  other.reset();
  EXPECT_TRUE(group_.run_until([&] { return host.is_drained(); }, 1s));
}

TEST_F(SessionTest, ANameThatMeansLoopbackHereIsServedOnEveryInterface) {
  RendezvousOptions options = options_for(hold_port());
  options.endpoint_host = "localhost";
  options.is_host.reset();
  TestNode a(options, 1);
  a.info().address = a.expect<MembershipReady>().address;
  EXPECT_THAT(a.notes(), ::testing::Contains(HasSubstr("listens on every interface")));
  EXPECT_TRUE(os::parse_address(a.info().address)->is_loopback());
  TestNode b(options, 2);
  form_round(&a, &b);
  expect_success(&a, &b);
}

TEST_F(SessionTest, ConfiguredHostBindsAllInterfacesForAnUnknownAddress) {
  for (const char* endpoint : {"192.0.2.1", "no-such-host.invalid"}) {
    RendezvousOptions options = options_for(hold_port());
    options.endpoint_host = endpoint;
    options.is_host = true;
    TestNode a(options, 1);
    a.info().address = a.expect<MembershipReady>().address;
    EXPECT_THAT(a.notes(), ::testing::Contains(AllOf(HasSubstr("listens on every interface"),
                                                     HasSubstr(endpoint))));
    RendezvousOptions other = options_for(options.endpoint_port);
    TestNode b(other, 2);
    form_round(&a, &b);
    expect_success(&a, &b);
  }
}

TEST_F(SessionTest, ConfiguredHostThatCannotBindIsAnError) {
  start_coordinator();
  RendezvousOptions options = options_for(coordinator_->port());
  options.is_host = true;
  const MembershipLost lost = lost_of(options);
  EXPECT_EQ(lost.exit_code, kExitCannotServe);
  EXPECT_THAT(lost.message, HasSubstr("cannot listen on 127.0.0.1:"));
}

TEST_F(SessionTest, DrainedLeaveWasAcknowledged) {
  start_coordinator();
  TestNode a(options_for(coordinator_->port(), 1, 2), 1);
  TestNode b(options_for(coordinator_->port(), 1, 2), 2);
  form_round(&a, &b);
  a.send(rdzv::Leave{a.info().id, "SIGTERM"});
  EXPECT_TRUE(a.drain());
  a.crash();
  const auto restart = b.expect<rdzv::Restart>();
  EXPECT_EQ(restart.round, b.record().round);
  EXPECT_THAT(restart.reason, AllOf(HasSubstr("left"), HasSubstr("SIGTERM")));
}

TEST_F(SessionTest, EndWithoutLeaveIsTreatedAsACrash) {
  start_coordinator();
  RendezvousOptions options = options_for(coordinator_->port(), 1, 2);
  options.settings.reconnect_grace = 50ms;
  TestNode a(options, 1);
  TestNode b(options, 2);
  form_round(&a, &b);
  a.crash();
  EXPECT_THAT(b.expect<rdzv::Restart>().reason, HasSubstr("was lost"));
}

TEST_F(SessionTest, ReconnectedConnectionsChangeNothing) {
  start_coordinator();
  TcpProxy proxy(coordinator_->port(), &group_);
  TestNode a(options_for(proxy.port()), 1);
  TestNode b(options_for(coordinator_->port()), 2);
  form_round(&a, &b);
  for (int i = 0; i < 5; ++i) proxy.cut();
  expect_success(&a, &b);
}

// The message is lost with the connection, or the coordinator receives it twice.
TEST_F(SessionTest, ExitOfARankIsSentAgainAfterTheResume) {
  start_coordinator();
  TcpProxy proxy(coordinator_->port(), &group_);
  TestNode a(options_for(proxy.port()), 1);
  TestNode b(options_for(coordinator_->port()), 2);
  form_round(&a, &b);
  proxy.cut();
  a.observe(hang::RankFinished{.round = a.record().round, .rank = 0, .limit = 100ms});
  EXPECT_GT(a.expect<hang::StacksWanted>().request, 0U);
  b.expect<hang::StacksWanted>();
  for (TestNode* node : {&a, &b}) {
    EXPECT_THAT(node->expect<hang::Verdict>().text, HasSubstr("partial exit: rank 0 exited"));
    EXPECT_EQ(node->expect<rdzv::Closed>().result->exit_code, kExitPartial);
  }
}

TEST_F(SessionTest, ShortSilenceOfAPathChangesNothing) {
  start_coordinator();
  RendezvousOptions options = options_for(coordinator_->port());
  options.settings.node_timeout = 10s;
  TcpProxy proxy(coordinator_->port(), &group_);
  RendezvousOptions through = options;
  through.endpoint_port = proxy.port();
  TestNode a(through, 1);
  TestNode b(options, 2);
  form_round(&a, &b);
  proxy.stall_for(6s);
  expect_success(&a, &b);
}

TEST_F(SessionTest, SilentNodeIsLostAndNotified) {
  start_coordinator();
  RendezvousOptions options = options_for(coordinator_->port(), 1, 2);
  options.settings.node_timeout = 6s;
  TcpProxy proxy(coordinator_->port(), &group_);
  RendezvousOptions through = options;
  through.endpoint_port = proxy.port();
  TestNode a(through, 1);
  TestNode b(options, 2);
  form_round(&a, &b);
  proxy.stall_for(1h);
  EXPECT_THAT(b.expect<rdzv::Restart>().reason, HasSubstr("no sign of life"));
  proxy.stall_for(0s);
  EXPECT_EQ(a.expect<rdzv::Evicted>().round, a.record().round);
  a.info().highest_round = a.record().round;
  a.join();
  a.expect<rdzv::Waiting>();
  b.send(rdzv::Gone{b.info().id, b.record().round});
  b.join();
  EXPECT_GT(a.expect_round(), 1u);
}

TEST_F(SessionTest, ACoordinatorThatIsRestartedEmptyIsRebuilt) {
  const std::uint16_t port = hold_port();
  start_coordinator(port);
  TestNode a(options_for(port), 1);
  TestNode b(options_for(port), 2);
  form_round(&a, &b);
  coordinator_.reset();
  a.done();  // no server listens: it is sent when one does
  start_coordinator(port);
  b.done();
  for (TestNode* node : {&a, &b}) {
    const auto closed = node->expect<rdzv::Closed>();
    ASSERT_NE(closed.result, nullptr);
    EXPECT_EQ(closed.result->outcome, JobOutcome::kSucceeded);
  }
}

TEST_F(SessionTest, RestartedHostRestoresTheJob) {
  RendezvousOptions options = options_for(hold_port());
  options.is_host.reset();
  auto host = std::make_unique<TestNode>(options, 1);
  host->info().address = host->expect<MembershipReady>().address;
  TestNode other(options, 2);
  form_round(host.get(), &other);
  host.reset();  // as by SIGKILL
  TestNode again(options, 3);
  again.join();
  const auto restart = other.expect<rdzv::Restart>();
  EXPECT_EQ(restart.round, other.record().round);
  EXPECT_THAT(restart.reason, HasSubstr("hosted the coordinator"));
  other.send(rdzv::Gone{other.info().id, other.record().round});
  other.join();
  EXPECT_EQ(other.expect_round(), 2u);
  EXPECT_EQ(again.expect_round(), 2u);
  expect_success(&again, &other);
}

TEST_F(SessionTest, MissingCoordinatorIsLost) {
  start_coordinator(hold_port());
  RendezvousOptions options = options_for(coordinator_->port());
  options.settings.store_grace = 5s;
  TestNode a(options, 1);
  TestNode b(options, 2);
  form_round(&a, &b);
  coordinator_.reset();
  const MembershipLost lost = a.expect<MembershipLost>();
  EXPECT_EQ(lost.exit_code, kExitCoordinatorLost);
  EXPECT_THAT(lost.message, AllOf(HasSubstr("was not reached for 5 s"), HasSubstr("refused")));
  EXPECT_THAT(a.notes(), ::testing::Contains(HasSubstr("cannot be reached")));
}

// Such a node logged "cannot be reached" and ended with 77 after store_grace.
TEST_F(SessionTest, ANodeThatWasNeverInARoundGivesUpAfterJoinTimeout) {
  start_coordinator(hold_port());
  RendezvousOptions options = options_for(coordinator_->port());
  options.settings.join_timeout = 5s;
  options.settings.max_nodes = 3;
  options.settings.min_nodes = 1;
  TestNode a(options, 1);
  a.join();
  a.expect<rdzv::Waiting>();
  coordinator_.reset();
  const MembershipLost lost = a.expect<MembershipLost>();
  EXPECT_EQ(lost.exit_code, kExitJoinTimedOut);
  EXPECT_THAT(lost.message, HasSubstr("was not reached for 5 s"));
}

// Such nodes ended after store_grace, a minute after their host had ended with 75.
TEST_F(SessionTest, AHostThatGivesUpEndsTheOthersWithItsReason) {
  RendezvousOptions options = options_for(hold_port(), 3, 3);
  options.is_host = true;
  options.settings.join_timeout = 5s;
  TestNode host(options, 1);
  host.join();
  host.expect<rdzv::TimedOut>();
  options.is_host = false;
  options.settings.join_timeout = 60s;
  TestNode other(options, 2);
  other.join();
  other.expect<rdzv::Waiting>();
  host.drain();
  EXPECT_THAT(other.expect<rdzv::TimedOut>().message,
              HasSubstr("the agent that hosts the coordinator gave up"));
}

TEST_F(SessionTest, AJobAtTheCoordinatorOfAnotherJobIsToldSoAndOutlivesThatJob) {
  RendezvousOptions options = options_for(hold_port(), 1, 1);
  options.settings.store_grace = 500ms;
  options.is_host = true;
  TestNode host(options, 1);
  host.join();
  host.expect_round();
  options.is_host = false;
  TestNode guest(options, 2, "guest");
  guest.join();
  guest.expect_round();
  EXPECT_THAT(guest.notes(), ::testing::Contains(HasSubstr("runs in an agent of job job")));
  host.done();
  host.expect<rdzv::Closed>();
  host.send(rdzv::Leave{host.info().id, "done"});
  host.drain();
  host.crash();
  group_.advance(10s);  // longer than store_grace
  guest.done();
  EXPECT_EQ(guest.expect<rdzv::Closed>().result->outcome, JobOutcome::kSucceeded);
}

TEST_F(SessionTest, AGuestOfAnotherJobsAgentHostsTheEndpointWhenThatIsKilled) {
  RendezvousOptions options = options_for(hold_port(), 1, 1);
  options.is_host = true;
  TestNode host(options, 1);
  host.join();
  host.expect_round();
  options.is_host = std::nullopt;
  options.settings.store_grace = 20s;
  TestNode guest(options, 2, "guest");
  guest.join();
  guest.expect_round();
  host.crash();
  group_.advance(60s);  // longer than store_grace
  guest.done();
  EXPECT_EQ(guest.expect<rdzv::Closed>().result->outcome, JobOutcome::kSucceeded);
}

// A slow look-up inside reconnect_grace cost a round.
TEST_F(SessionTest, AnAttemptDialsTheLastGoodAddressBesideTheLookUp) {
  start_coordinator();
  auto thread = *os::LoopThread::start("attempt");
  std::promise<bool> promise;
  auto found = promise.get_future();
  std::unique_ptr<SessionAttempt> attempt;
  std::unique_ptr<PeerGroup> connections;
  thread->call([&] {
    connections = std::make_unique<PeerGroup>(&thread->loop(), 1 << 20, 1 << 20);
    attempt = std::make_unique<SessionAttempt>(
        connections.get(),
        SessionAttempt::Options{
            .host = "no-such-host.invalid",
            .port = coordinator_->port(),
            .last_good = os::look_up("127.0.0.1", coordinator_->port())->front(),
            .limit = kTestTimeout,
            .node_timeout = 5s},
        SessionAttempt::Sink{
            .route = [](const auto& resolved)
                -> std::variant<SessionAttempt::Addresses, SessionAttempt::Failure> {
              return SessionAttempt::Failure{resolved.status(), std::nullopt};
            },
            .on_delay = [](const Status&) {},
            .done =
                [&](auto outcome) {
                  promise.set_value(std::holds_alternative<os::DetachedStream>(outcome));
                }});
  });
  EXPECT_TRUE(group_.await([&] { return found.wait_for(0s) == std::future_status::ready; }));
  EXPECT_TRUE(found.get());
  thread->call([&] {
    attempt.reset();
    connections.reset();
  });
}

// A node with a longer node_timeout than its job's was evicted each time the job's passed.
TEST_F(SessionTest, ANodeUsesTheTimingsOfItsJob) {
  start_coordinator();
  RendezvousOptions options = options_for(coordinator_->port());
  options.settings.node_timeout = 6s;
  TestNode a(options, 1);
  a.join();
  a.expect<rdzv::Waiting>();
  options.settings.node_timeout = 60s;
  TestNode b(options, 2);
  form_round(&a, &b);
  EXPECT_TRUE(b.receives_nothing_for(8s));
  EXPECT_THAT(b.notes(), ::testing::Contains(HasSubstr("node_timeout is 6 s (here 1 min)")));
  expect_success(&a, &b);
}

TEST_F(SessionTest, ANodeThatFindsNoCoordinatorInTimeSaysWhatItFound) {
  ScriptedServer silent([](ScriptedPeer& peer, int) { peer.drain(); });
  struct Case {
    const char* host;
    std::uint16_t port;
    std::vector<const char*> says;
  };
  for (const auto& [host, port, says] :
       {Case{"no-such-host.invalid",
             29400,
             {"no coordinator was found at no-such-host.invalid", "cannot resolve"}},
        Case{"127.0.0.1",
             hold_port(),
             {"no agent may be hosting 127.0.0.1:", "it resolved to 127.0.0.1"}},
        Case{"127.0.0.1", silent.port(), {"accepted the connection but sent no handshake"}}}) {
    RendezvousOptions options = options_for(port);
    options.endpoint_host = host;
    options.settings.join_timeout = 5s;
    const Instant begun = group_.now();
    const MembershipLost lost = lost_of(options);
    EXPECT_EQ(lost.exit_code, kExitJoinTimedOut);
    for (const char* part : says) EXPECT_THAT(lost.message, HasSubstr(part));
    EXPECT_EQ(group_.now() - begun, options.settings.join_timeout);
  }
}

TEST_F(SessionTest, PlainStoreIsNotACoordinator) {
  auto store = StoreServer::start({});
  ASSERT_TRUE(store.ok());
  const MembershipLost lost = lost_to_a_thread((*store)->port());
  EXPECT_EQ(lost.exit_code, kExitRejected);
  EXPECT_THAT(lost.message, HasSubstr("is a plain TCPStore, not a coordinator"));
}

TEST_F(SessionTest, OtherProtocolOnThePortIsReportedAtOnce) {
  ScriptedServer server([](ScriptedPeer& peer, int) {
    peer.read(4);
    peer.write("HTTP/1.1 400 Bad Request\r\n\r\n");
    peer.drain();
  });
  const MembershipLost lost = lost_to_a_thread(server.port());
  EXPECT_EQ(lost.exit_code, kExitRejected);
  EXPECT_THAT(lost.message, AllOf(HasSubstr("speaks another protocol"), HasSubstr("\"HTTP/\"")));
}

TEST_F(SessionTest, LineServerReceivesALineToAnswer) {
  ScriptedServer server([](ScriptedPeer& peer, int) {
    for (std::string line; !line.ends_with("\n");) line += peer.read(1);
    peer.write("-ERR unknown command\r\n");
    peer.drain();
  });
  EXPECT_THAT(lost_to_a_thread(server.port()).message, HasSubstr("\"-ERR \""));
}

TEST_F(SessionTest, CoordinatorOfAnotherVersionRejects) {
  ScriptedServer server([](ScriptedPeer& peer, int) {
    const std::string nonce = peer.read(10).substr(6);
    peer.read(1 + 8 + 8 + session::kReservedKey.size());
    peer.write(nonce + std::string(1, '\0'));
    session::ServerHello hello;
    hello.version = 9;
    hello.oldest_version = 8;
    std::string frame;
    session::append(&frame, session::ServerMessage(hello));
    peer.write(frame);
    peer.drain();
  });
  TestNode a(options_for(server.port()), 1);
  EXPECT_TRUE(a.awaits<MembershipReady>());
  a.join();
  EXPECT_TRUE(a.awaits<rdzv::Refused>());
  EXPECT_THAT(a.expect<rdzv::Refused>().error.message(), HasSubstr("version"));
}

TEST_F(SessionTest, TheGivenLocalAddressIsPublished) {
  start_coordinator();
  RendezvousOptions options = options_for(coordinator_->port());
  options.local_addr = "127.0.0.9";
  EXPECT_EQ(TestNode(options, 1).expect<MembershipReady>().address, "127.0.0.9");
  options.local_addr = "no-such-host.invalid";
  const MembershipLost lost = lost_of(options);
  EXPECT_EQ(lost.exit_code, kExitUsage);
  EXPECT_THAT(lost.message, HasSubstr("local_addr: cannot resolve"));
}

}  // namespace
}  // namespace elastic::host
