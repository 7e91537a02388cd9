#include "core/session/session_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/session/session_machine_harness.h"
#include "elastic/agent.h"

namespace elastic::core {
namespace {

using namespace session_machine_test;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(SessionMachineTest, SendsTheJoinAsSoonAsItIsConnected) {
  EXPECT_THAT(begin(), ElementsAre("connect"));
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
  EXPECT_THAT(submit(join()), ElementsAre("hello", "join after 0", "heartbeat"));
}

TEST_F(SessionMachineTest, JoinBeforeTheConnectionIsSentAfterIt) {
  begin();
  EXPECT_THAT(submit(join()), IsEmpty());
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "join after 0", "heartbeat"));
}

TEST_F(SessionMachineTest, ANodeThatJoinsLaterIsKnownBefore) {
  begin();
  step(M::Connected{});
  EXPECT_THAT(step(M::Introduce{kNode}), ElementsAre("hello", "heartbeat"));
  EXPECT_THAT(reconnect(), ElementsAre("hello", "heartbeat"));
  EXPECT_TRUE(machine_.is_flushed());
  EXPECT_THAT(submit(join()), ElementsAre("join after 0", "heartbeat"));
  EXPECT_THAT(reconnect(), ElementsAre("hello", "join after 0", "heartbeat"));
}

TEST_F(SessionMachineTest, ANodeThatJoinsLaterReceivesTheResultOfAJobThatEndsBefore) {
  begin();
  step(M::Introduce{kNode});
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "heartbeat"));
  EXPECT_THAT(receive(rdzv::Closed{kNode, std::make_shared<const JobResult>()}),
              ElementsAre("deliver: closed"));
  EXPECT_THAT(lose_connection(), IsEmpty());
}

TEST_F(SessionMachineTest, JoinsAgainUntilTheCoordinatorHasAnsweredOnce) {
  begin();
  step(M::Connected{});
  submit(join());
  EXPECT_THAT(reconnect(), ElementsAre("hello", "join after 0", "heartbeat"));
  receive(rdzv::Waiting{kNode, "for more"});
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume joined", "heartbeat"));
}

TEST_F(SessionMachineTest, ResumeContainsTheNodesPhase) {
  enter_round(3);
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume working in 3", "heartbeat"));
  submit(rdzv::Gone{kNode, 3});
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume stopped in 3", "heartbeat"));
  submit(join(3));
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume joined in 3", "heartbeat"));
  receive(round(4));
  submit(rdzv::Done{kNode, 4});
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume done in 4", "heartbeat"));
  const auto& resume = std::get<rdzv::Resume>(last_sent_);
  EXPECT_EQ(resume.node.highest_round, 4u);
  EXPECT_EQ(resume.node.previous_rank, 1);
  EXPECT_EQ(resume.last->group_rank, 1);
}

TEST_F(SessionMachineTest, StatementsWithoutAConnectionAreInTheResume) {
  enter_round(3);
  lose_connection();
  EXPECT_THAT(submit(rdzv::Failed{kNode, 3, failure_at(now_)}), IsEmpty());
  EXPECT_THAT(submit(rdzv::Gone{kNode, 3}), IsEmpty());
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello"));
  EXPECT_THAT(step(M::HelloReceived{1, now_}),
              ElementsAre("resume stopped in 3 with a failure", "heartbeat"));
}

TEST_F(SessionMachineTest, FailureBelongsToItsRoundOnly) {
  enter_round(3);
  submit(rdzv::Failed{kNode, 3, failure_at(now_)});
  receive(rdzv::Restart{kNode, 3, rdzv::RestartCause::kWorkerFailed, "why", 30s});
  submit(rdzv::Gone{kNode, 3});
  submit(join(3));
  receive(round(4));
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume working in 4", "heartbeat"));
}

TEST_F(SessionMachineTest, LeaveIsRepeatedUntilItIsAcknowledged) {
  enter_round(3);
  EXPECT_THAT(submit(rdzv::Leave{kNode, "SIGTERM"}), ElementsAre("leave", "heartbeat"));
  EXPECT_FALSE(machine_.is_flushed());
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume working in 3", "leave", "heartbeat"));
  acknowledge_heartbeat();
  EXPECT_TRUE(machine_.is_flushed());
  EXPECT_THAT(lose_connection(), IsEmpty());
  EXPECT_EQ(machine_.next_deadline(), std::nullopt);
}

TEST_F(SessionMachineTest, ANodeWithoutARoundLeavesWithoutJoiningFirst) {
  connect_and_join();
  submit(rdzv::Leave{kNode, "SIGTERM"});
  EXPECT_THAT(reconnect(), ElementsAre("hello", "leave", "heartbeat"));
}

TEST_F(SessionMachineTest, NodeThatNeverJoinedSendsNoLeave) {
  begin();
  EXPECT_THAT(submit(rdzv::Leave{kNode, "SIGTERM"}), IsEmpty());
  EXPECT_TRUE(machine_.is_flushed());
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
}

TEST_F(SessionMachineTest, NodeThatLeftReceivesNothing) {
  enter_round(3);
  submit(rdzv::Leave{kNode, "SIGTERM"});
  EXPECT_THAT(receive(rdzv::Evicted{kNode, 3, "not known"}), IsEmpty());
}

TEST_F(SessionMachineTest, CloseIsRepeatedUntilTheResultArrives) {
  enter_round(3);
  EXPECT_THAT(submit(rdzv::Close{kNode, {}}), ElementsAre("close", "heartbeat"));
  EXPECT_THAT(reconnect(), ElementsAre("hello", "resume working in 3", "close", "heartbeat"));
  EXPECT_THAT(receive(rdzv::Closed{kNode, std::make_shared<const JobResult>()}),
              ElementsAre("deliver: closed"));
}

TEST_F(SessionMachineTest, ACloseNeedsNoJoin) {
  begin();
  step(M::Connected{});
  EXPECT_THAT(submit(rdzv::Close{kNode, {}}), ElementsAre("hello", "close", "heartbeat"));
  EXPECT_THAT(receive(rdzv::Closed{kNode, std::make_shared<const JobResult>()}),
              ElementsAre("deliver: closed"));
}

TEST_F(SessionMachineTest, RepeatedActionIsDeliveredOnce) {
  const auto result = std::make_shared<const JobResult>();
  enter_round(3);
  EXPECT_THAT(receive(round(3)), IsEmpty());
  EXPECT_THAT(receive(round(2)), IsEmpty());
  const rdzv::Restart restart{kNode, 3, rdzv::RestartCause::kGrowth, "a node waits", 30s};
  EXPECT_THAT(receive(restart), ElementsAre("deliver: restart 3"));
  EXPECT_THAT(receive(restart), IsEmpty());
  EXPECT_THAT(receive(rdzv::RoundOver{kNode, 3}), ElementsAre("deliver: round over"));
  EXPECT_THAT(receive(rdzv::RoundOver{kNode, 3}), IsEmpty());
  EXPECT_THAT(receive(rdzv::Closed{kNode, result}), ElementsAre("deliver: closed"));
  EXPECT_THAT(receive(rdzv::Closed{kNode, result}), IsEmpty());
}

TEST_F(SessionMachineTest, SessionInternalActionsAreNotDelivered) {
  enter_round(3);
  EXPECT_THAT(receive(rdzv::Resumed{kNode, 3}), IsEmpty());
  EXPECT_THAT(receive(rdzv::Superseded{kNode, 3}), IsEmpty());
}

TEST_F(SessionMachineTest, JoinContainsTheHighestReceivedRound) {
  connect_and_join();
  receive(rdzv::Restart{kNode, 5, rdzv::RestartCause::kMemberLost, "why", 30s});
  EXPECT_THAT(submit(join()), ElementsAre("join after 5"));
  receive(rdzv::Evicted{kNode, 8, "no sign of life"});
  EXPECT_THAT(submit(join(2)), ElementsAre("join after 8", "heartbeat"));
  EXPECT_THAT(receive(round(8)), IsEmpty());
}

TEST_F(SessionMachineTest, EvictionIsDeliveredOnceAndNothingIsSentBeforeTheNextJoin) {
  enter_round(3);
  EXPECT_THAT(receive(rdzv::Evicted{kNode, 3, "no sign of life"}), ElementsAre("deliver: evicted"));
  EXPECT_THAT(receive(rdzv::Evicted{kNode, 3, "no sign of life"}), IsEmpty());
  EXPECT_THAT(submit(rdzv::Gone{kNode, 3}), IsEmpty());
  EXPECT_THAT(after(10s), IsEmpty());
  EXPECT_THAT(reconnect(), IsEmpty());
  EXPECT_THAT(submit(join(3)), ElementsAre("hello", "join after 3", "heartbeat"));
}

TEST_F(SessionMachineTest, DoneNodeThatWasEvictedReturnsToTheBarrierOnce) {
  enter_round(3);
  submit(rdzv::Done{kNode, 3});
  EXPECT_THAT(receive(rdzv::Evicted{kNode, 3, "no sign of life"}), ElementsAre("resume done in 3"));
  EXPECT_THAT(receive(rdzv::Evicted{kNode, 3, "not known"}), ElementsAre("deliver: evicted"));
}

TEST_F(SessionMachineTest, SendsSeveralHeartbeatsPerNodeTimeout) {
  connect_and_join();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(machine_.next_deadline(), now_ + 1s);
    EXPECT_THAT(after(999ms), IsEmpty());
    EXPECT_THAT(after(1ms), ElementsAre("heartbeat"));
    acknowledge_heartbeat();
  }
}

TEST_F(SessionMachineTest, UnacknowledgedHeartbeatStartsASecondConnectionAndTheFirstToReplyIsKept) {
  connect_and_join();
  EXPECT_THAT(after(1s), ElementsAre("heartbeat"));
  EXPECT_THAT(after(1s), ElementsAre("heartbeat", "connect"));
  // The old connection delivers first: the attempt is cancelled.
  EXPECT_THAT(acknowledge_heartbeat(), ElementsAre("cancel attempt"));
  EXPECT_THAT(after(1s), ElementsAre("heartbeat"));
  EXPECT_THAT(after(1s), ElementsAre("heartbeat", "connect"));
  // The new connection delivers first: it replaces the old one.
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "resume joined", "heartbeat"));
}

TEST_F(SessionMachineTest, TheFirstReconnectIsAtOnceAndLaterOnesAreAtMostASecondApart) {
  connect_and_join();
  EXPECT_THAT(lose_connection(), ElementsAre("connect"));
  std::set<Duration> waits;
  for (int i = 0; i < 30; ++i) {
    fail_attempt();
    const Instant retry = *machine_.next_deadline();
    EXPECT_LE(retry - now_, 1s);
    waits.insert(retry - now_);
    now_ = retry;
    step(M::Tick{});
  }
  EXPECT_GT(waits.size(), 20u);  // jitter
}

TEST_F(SessionMachineTest, FailsAfterStoreGraceWithoutTheCoordinator) {
  enter_round(1);
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(59s), testing::Contains("connect"));
  EXPECT_THAT(after(1s), ElementsAre("cancel attempt",
                                     "lost " + std::to_string(kExitCoordinatorLost) +
                                         ": the coordinator at node1:29400 was not reached for "
                                         "1 min: refused"));
  EXPECT_EQ(machine_.next_deadline(), std::nullopt);
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
  EXPECT_TRUE(machine_.is_flushed());
}

TEST_F(SessionMachineTest, BeforeTheFirstSuccessTheJoinDeadlineCounts) {
  begin();
  fail_attempt();
  after(599s);
  EXPECT_THAT(after(1s), ElementsAre("cancel attempt",
                                     "lost " + std::to_string(kExitJoinTimedOut) +
                                         ": no coordinator was found at node1:29400 within 10 min: "
                                         "refused"));
}

TEST_F(SessionMachineTest, LogsAWaitAfterASecondAndEveryTenSeconds) {
  begin();
  fail_attempt();
  Duration wait = 1s;
  for (const char* left : {"9 min 59 s", "9 min 49 s", "9 min 39 s"}) {
    now_ += std::exchange(wait, 10s);
    const std::string ending = std::string(": refused, gives up in ") + left;
    EXPECT_THAT(step(M::Tick{}),
                testing::Contains("log: waiting for a coordinator at node1:29400" + ending));
    fail_attempt();
  }
}

TEST_F(SessionMachineTest, LogsALostCoordinatorAndItsReturn) {
  connect_and_join();
  EXPECT_THAT(lose_connection(), ElementsAre("connect"));
  EXPECT_THAT(fail_attempt(), ElementsAre(HasSubstr("log: the coordinator at node1:29400 cannot "
                                                    "be reached: refused, gives up in 10 min")));
  after(1s);
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "resume joined", "heartbeat"));
  EXPECT_THAT(step(M::HelloReceived{1, now_}),
              ElementsAre("log: the coordinator at node1:29400 answers again"));
}

TEST_F(SessionMachineTest, AnAttemptThatCannotSucceedEndsTheSearchUnlessOneHas) {
  const M::AttemptFailed foreign{Status(StatusCode::kPeerViolation, "it is a web server"),
                                 kExitRejected};
  begin();
  EXPECT_THAT(step(foreign),
              ElementsAre("lost " + std::to_string(kExitRejected) + ": it is a web server"));
  M other(settings(), {"node1:29400"}, 8);
  std::vector<M::Action> actions;
  other.begin(now_, &actions);
  other.step(M::Connected{}, now_, &actions);
  other.step(M::ConnectionLost{}, now_, &actions);
  actions.clear();
  other.step(foreign, now_, &actions);
  EXPECT_THAT(texts_of(actions), ElementsAre(HasSubstr("log: ")));
}

TEST_F(SessionMachineTest, LostConnectionAfterTheResultIsIgnored) {
  enter_round(3);
  receive(rdzv::Closed{kNode, std::make_shared<const JobResult>()});
  submit(rdzv::Leave{kNode, "the job is over"});
  EXPECT_FALSE(machine_.is_flushed());
  EXPECT_THAT(lose_connection(), IsEmpty());
  EXPECT_TRUE(machine_.is_flushed());
}

TEST_F(SessionMachineTest, RejectedNodeMayJoinAgain) {
  connect_and_join();
  EXPECT_THAT(receive(rdzv::Refused{kNode, Status(StatusCode::kInvalidArgument, "no")}),
              ElementsAre("deliver: refused"));
  EXPECT_THAT(lose_connection(), IsEmpty());
  EXPECT_THAT(submit(join()), ElementsAre("connect"));
}

TEST_F(SessionMachineTest, OnlyALaterHeartbeatAcknowledgesAStatement) {
  enter_round(3);
  EXPECT_TRUE(machine_.is_flushed());
  after(1s);  // a beat is on its way
  const Instant before = last_heartbeat_;
  submit(rdzv::Done{kNode, 3});
  step(M::HeartbeatAcknowledged{before, now_});
  EXPECT_FALSE(machine_.is_flushed());
  EXPECT_THAT(step(M::Flush{}), ElementsAre("heartbeat"));
  EXPECT_THAT(step(M::Flush{}), IsEmpty());
  acknowledge_heartbeat();
  EXPECT_TRUE(machine_.is_flushed());
}

TEST_F(SessionMachineTest, ShortestRoundTripGivesTheClockOffset) {
  connect_and_join();
  const Duration ahead = 3h;
  for (const Duration trip : {40ms, 2ms, 90ms}) {
    after(1s);
    now_ += trip;
    // The way there takes all of the time, the way back none.
    step(M::HeartbeatAcknowledged{last_heartbeat_, now_ + ahead});
  }
  hello(2, ahead);  // another coordinator: earlier samples are dropped
  EXPECT_GT(machine_.clock_offset(), ahead - 100ms);
  after(1s);
  now_ += 2ms;
  acknowledge_heartbeat(ahead);
  EXPECT_NEAR(to_seconds(machine_.clock_offset()), to_seconds(ahead), 0.0011);
}

TEST_F(SessionMachineTest, FailureTimesUseTheCoordinatorsClock) {
  begin();
  step(M::Connected{});
  submit(join());
  hello(1, 1h);
  receive(round(3));
  const Instant at = now_;
  now_ += 5s;
  submit(rdzv::Failed{kNode, 3, failure_at(at)});
  EXPECT_EQ(std::get<rdzv::Failed>(last_sent_).failure.at, at + 1h);
  // A new coordinator on another host: its clock is known before the failure is sent.
  EXPECT_THAT(reconnect(), ElementsAre("hello"));
  hello(2, 7h);
  EXPECT_EQ(std::get<rdzv::Resume>(last_sent_).failure->at, at + 7h);
}

TEST_F(SessionMachineTest, UnsolicitedReplyIsIgnored) {
  connect_and_join();
  step(M::HeartbeatAcknowledged{now_ + 1h, now_ + 9h});
  EXPECT_EQ(machine_.clock_offset(), 0ns);
}

JobSettings with_node_timeout(Duration timeout) {
  JobSettings job = settings();
  job.node_timeout = timeout;
  return job;
}

// A node with node_timeout=60 in a job with 2 was evicted every two seconds: its heartbeats were
// too rare.
TEST_F(SessionMachineTest, SendsHeartbeatsByTheTimingsOfTheJob) {
  enter_round(1);
  const auto log_progress = step(M::TimingsReceived{with_node_timeout(1s)});
  EXPECT_THAT(log_progress, ElementsAre("log: the timings of the job's first node replace those of "
                                        "this node: node_timeout is 1 s (here 8 s)"));
  int beats = 0;
  for (int i = 0; i < 10; ++i) {
    for (const std::string& text : after(100ms)) beats += text == "heartbeat";
    acknowledge_heartbeat();
  }
  EXPECT_GE(beats, 5);
  EXPECT_THAT(step(M::TimingsReceived{with_node_timeout(1s)}), IsEmpty()) << "logged once";
  EXPECT_THAT(step(M::TimingsReceived{settings()}), IsEmpty()) << "no difference any more";
}

TEST_F(SessionMachineTest, GivesUpAfterTheStoreGraceOfTheJob) {
  enter_round(1);
  JobSettings job = settings();
  job.store_grace = 3s;
  step(M::TimingsReceived{job});
  lose_connection();
  fail_attempt();
  after(2900ms);
  EXPECT_THAT(after(100ms), ::testing::Contains(HasSubstr("lost 77: ")));
}

// ---- The coordinator moves to another node.

TEST_F(SessionMachineTest, FollowsTheCoordinatorToItsNewAddress) {
  enter_round(3);
  EXPECT_THAT(step(M::CoordinatorMoved{"10.0.0.2:5000"}),
              ElementsAre("disconnect", "connect to 10.0.0.2:5000"));
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "resume working in 3", "heartbeat"));
}

TEST_F(SessionMachineTest, ASearchContinuesAtTheNewAddress) {
  enter_round(3);
  lose_connection();
  EXPECT_THAT(step(M::CoordinatorMoved{"10.0.0.2:5000"}),
              ElementsAre("cancel attempt", "connect to 10.0.0.2:5000"));
  // An address that does not answer is tried in turn with the endpoints.
  fail_attempt();
  EXPECT_THAT(after(1s), ::testing::Contains("connect"));
  fail_attempt();
  EXPECT_THAT(after(1s), ::testing::Contains("connect to 10.0.0.2:5000"));
}

// Processes that direct a node to each other must not keep it for ever.
TEST_F(SessionMachineTest, BeingSentAwayDoesNotProlongTheStoreGrace) {
  enter_round(1);
  JobSettings job = settings();
  job.store_grace = 3s;
  step(M::TimingsReceived{job});
  Texts all = lose_connection();
  const Instant end = now_ + 4s;
  bool has_address = false;
  while (now_ < end) {
    const bool is_greeted = std::find(all.begin(), all.end(), "hello") != all.end();
    const bool is_connecting = std::any_of(all.begin(), all.end(), [](const std::string& text) {
      return text.starts_with("connect");
    });
    all.clear();
    if (is_greeted) {
      has_address = !has_address;
      all = step(M::CoordinatorMoved{has_address ? "10.0.0.2:5000" : ""});
    } else if (is_connecting) {
      all = step(M::Connected{});
    }
    for (const std::string& text : after(1ms)) all.push_back(text);
    for (const std::string& text : all) {
      if (text.starts_with("lost 77")) return;
    }
  }
  FAIL() << "the node still searches";
}

TEST_F(SessionMachineTest, AMoveAfterTheEndIsIgnored) {
  enter_round(3);
  receive(rdzv::Closed{kNode, std::make_shared<const JobResult>()});
  submit(rdzv::Leave{kNode, "the job is over"});
  lose_connection();
  EXPECT_THAT(step(M::CoordinatorMoved{"10.0.0.2:5000"}), IsEmpty());
}

// ---- The job dissolves, and another one of its id goes on.

const M::Displaced kDisplaced{"10.0.0.2:5000", "the job runs already"};

TEST_F(SessionMachineTest, ANodeOfADissolvedJobStopsItsWorkersAndJoinsTheOtherOne) {
  enter_round(3);
  EXPECT_THAT(step(kDisplaced),
              ElementsAre("disconnect", "connect to 10.0.0.2:5000", "deliver: evicted"));
  // Nothing is sent until its workers have ended: not the round, which the other job does not have.
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
  rdzv::Join again = join(3);
  again.node.previous_rank = 1;
  std::vector<M::Action> actions;
  machine_.step(M::Submit{again}, now_, &actions);
  std::optional<rdzv::Join> sent;
  for (const M::Action& action : actions) {
    if (const auto* one = std::get_if<M::Send>(&action)) sent = std::get<rdzv::Join>(one->event);
  }
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->node.highest_round, 3U) << "its round numbers only grow";
  EXPECT_EQ(sent->node.previous_rank, -1) << "a rank of the former job";
}

TEST_F(SessionMachineTest, AWaitingNodeOfADissolvedJobWaitsInTheOtherOne) {
  connect_and_join();
  receive(rdzv::Waiting{kNode, "1 of 2 nodes", std::nullopt});
  EXPECT_THAT(step(kDisplaced), ElementsAre("disconnect", "connect to 10.0.0.2:5000"));
  EXPECT_THAT(step(M::Connected{}), ElementsAre("hello", "join after 0", "heartbeat"));
}

TEST_F(SessionMachineTest, ANodeThatLeavesADissolvedJobDoesNotJoinTheOtherOne) {
  enter_round(3);
  submit(rdzv::Leave{kNode, "SIGTERM"});
  EXPECT_THAT(step(kDisplaced), ElementsAre("disconnect"));
  EXPECT_TRUE(machine_.is_flushed());
}

// The host gave up with 75, and the other nodes with 77 a minute later.
TEST_F(SessionMachineTest, ANodeThatWasNeverInARoundUsesTheJoinTimeout) {
  connect_and_join();
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(599s), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
  EXPECT_THAT(after(1s), ::testing::Contains(AllOf(HasSubstr("lost 75: the coordinator at "
                                                             "node1:29400 was not reached"),
                                                   HasSubstr("10 min"))));
}

TEST_F(SessionMachineTest, TheReasonThatTheCoordinatorGaveIsNamedWhenItIsNotFoundAgain) {
  enter_round(1);
  step(M::CoordinatorLeaves{"the job of its agent succeeded"});
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(60s), ::testing::Contains(AllOf(HasSubstr("lost 77"),
                                                    HasSubstr("the job of its agent succeeded"))));
}

TEST_F(SessionMachineTest, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  enter_round(1);
  lose_connection();
  fail_attempt();
  after(1s);
  fail_attempt();
  now_ += 120s;
  EXPECT_THAT(step(M::ClockGap{120s}), IsEmpty());
  EXPECT_THAT(step(M::Tick{}), ::testing::Contains("connect")) << "tries before it gives up";
  fail_attempt();
  EXPECT_THAT(after(57s), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
  EXPECT_THAT(after(3s), ::testing::Contains(HasSubstr("lost 77")));
}

TEST_F(SessionMachineTest, AfterAGapThereIsTimeForAWholeAttempt) {
  enter_round(1);
  lose_connection();
  fail_attempt();
  after(59900ms);
  fail_attempt();
  now_ += 30s;
  step(M::ClockGap{30s});
  EXPECT_THAT(after(7s), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
}

TEST_F(SessionMachineTest, EndpointsAreTriedOneAfterTheOther) {
  M other(settings(), {"node1:29400", "node2:29400"}, 8);
  std::vector<M::Action> actions;
  other.begin(now_, &actions);
  other.step(M::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt}, now_,
             &actions);
  other.step(M::Tick{}, now_ + 1s, &actions);
  std::vector<std::size_t> tried;
  for (const M::Action& action : actions) {
    if (const auto* connect = std::get_if<M::Connect>(&action)) tried.push_back(connect->endpoint);
  }
  EXPECT_THAT(tried, ElementsAre(0, 1));
}

TEST_F(SessionMachineTest, AHelloCountsItsAttemptsAndNamesTheHighestTerm) {
  begin();
  submit(join());
  const auto send_hello = [&] {
    std::vector<M::Action> actions;
    machine_.step(M::Connected{}, now_, &actions);
    return std::get<M::SendHello>(actions.front());
  };
  EXPECT_EQ(send_hello().attempt, 1u);
  step(M::HelloReceived{1, now_, 5});
  lose_connection();
  const M::SendHello second = send_hello();
  EXPECT_EQ(second.attempt, 2u);
  EXPECT_EQ(second.term, 5u);
}

}  // namespace
}  // namespace elastic::core
