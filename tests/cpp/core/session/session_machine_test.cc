#include "core/session/session_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

class SessionMachineTest : public ::testing::Test {
 protected:
  using Texts = std::vector<std::string>;

  Texts texts_of(const std::vector<M::Action>& actions) {
    Texts texts;
    for (const M::Action& action : actions) {
      if (const auto* beat = std::get_if<M::Beat>(&action)) last_beat_ = beat->sent;
      if (const auto* said = std::get_if<M::Send>(&action)) last_sent_ = said->event;
      texts.push_back(text_of(action));
    }
    return texts;
  }
  Texts begin() {
    std::vector<M::Action> actions;
    machine_.begin(now_, &actions);
    return texts_of(actions);
  }
  Texts step(const M::Event& event) {
    std::vector<M::Action> actions;
    machine_.step(event, now_, &actions);
    return texts_of(actions);
  }
  Texts say(const M::Statement& statement) { return step(M::Say{statement}); }
  Texts hear(const RendezvousAction& action) { return step(M::Heard{action}); }
  Texts after(Duration wait, const M::Event& event = M::Tick{}) {
    now_ += wait;
    return step(event);
  }
  Texts lose_connection() {
    return step(M::ConnectionLost{Status(StatusCode::kUnavailable, "reset by peer")});
  }
  Texts fail_attempt() {
    return step(M::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt});
  }
  Texts answer_beat(Duration coordinator_ahead = 0ns) {
    return step(M::BeatAnswered{last_beat_, now_ + coordinator_ahead});
  }
  void greeted(std::uint64_t incarnation = 1, Duration coordinator_ahead = 0ns) {
    step(M::Greeted{incarnation, now_ + coordinator_ahead});
  }
  // Joined and known, everything heard.
  void settle_in() {
    begin();
    step(M::Connected{});
    say(join());
    greeted();
    answer_beat();
    hear(rdzv::Waiting{kNode, "for more"});
  }
  void settle_into_round(std::uint64_t number) {
    settle_in();
    hear(round(number));
  }
  Texts reconnect() {
    lose_connection();
    return step(M::Connected{});
  }

  Instant now_ = Instant(1h);
  M machine_{settings(), {"node1:29400"}, 7};
  Instant last_beat_;
  RendezvousEvent last_sent_ = rdzv::Tick{};
};

TEST_F(SessionMachineTest, SaysTheJoinAsSoonAsBothItAndAConnectionAreThere) {
  EXPECT_THAT(begin(), ElementsAre("connect"));
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
  EXPECT_THAT(say(join()), ElementsAre("greet", "join after 0", "beat"));
}

TEST_F(SessionMachineTest, AJoinSaidBeforeThereIsAConnectionFollowsIt) {
  begin();
  EXPECT_THAT(say(join()), IsEmpty());
  EXPECT_THAT(step(M::Connected{}), ElementsAre("greet", "join after 0", "beat"));
}

TEST_F(SessionMachineTest, JoinsAgainUntilTheCoordinatorHasAnsweredOnce) {
  begin();
  step(M::Connected{});
  say(join());
  EXPECT_THAT(reconnect(), ElementsAre("greet", "join after 0", "beat"));
  hear(rdzv::Waiting{kNode, "for more"});
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume joined", "beat"));
}

TEST_F(SessionMachineTest, AResumeTellsWhereTheNodeIs) {
  settle_into_round(3);
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume working in 3", "beat"));
  say(rdzv::Gone{kNode, 3});
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume stopped in 3", "beat"));
  say(join(3));
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume joined in 3", "beat"));
  hear(round(4));
  say(rdzv::Done{kNode, 4});
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume done in 4", "beat"));
  const auto& resume = std::get<rdzv::Resume>(last_sent_);
  EXPECT_EQ(resume.node.highest_round, 4u);
  EXPECT_EQ(resume.node.previous_rank, 1);
  EXPECT_EQ(resume.last->group_rank, 1);
}

TEST_F(SessionMachineTest, WhatIsSaidWithoutAConnectionIsSaidByTheResume) {
  settle_into_round(3);
  lose_connection();
  EXPECT_THAT(say(rdzv::Failed{kNode, 3, failure_at(now_)}), IsEmpty());
  EXPECT_THAT(say(rdzv::Gone{kNode, 3}), IsEmpty());
  EXPECT_THAT(step(M::Connected{}), ElementsAre("greet"));
  EXPECT_THAT(step(M::Greeted{1, now_}), ElementsAre("resume stopped in 3 with a failure", "beat"));
}

TEST_F(SessionMachineTest, AFailureBelongsToItsRoundAlone) {
  settle_into_round(3);
  say(rdzv::Failed{kNode, 3, failure_at(now_)});
  hear(rdzv::Restart{kNode, 3, rdzv::RestartCause::kWorkerFailed, "why", 30s});
  say(rdzv::Gone{kNode, 3});
  say(join(3));
  hear(round(4));
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume working in 4", "beat"));
}

TEST_F(SessionMachineTest, ALeaveIsRepeatedUntilItIsHeardAndThenNothingIs) {
  settle_into_round(3);
  EXPECT_THAT(say(rdzv::Leave{kNode, "SIGTERM"}), ElementsAre("leave", "beat"));
  EXPECT_FALSE(machine_.is_settled());
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume working in 3", "leave", "beat"));
  answer_beat();
  EXPECT_TRUE(machine_.is_settled());
  EXPECT_THAT(lose_connection(), IsEmpty());
  EXPECT_EQ(machine_.next_deadline(), std::nullopt);
}

TEST_F(SessionMachineTest, ANodeWithoutARoundLeavesWithoutJoiningFirst) {
  settle_in();
  say(rdzv::Leave{kNode, "SIGTERM"});
  EXPECT_THAT(reconnect(), ElementsAre("greet", "leave", "beat"));
}

TEST_F(SessionMachineTest, WhoNeverSpokeHasNothingToLeave) {
  begin();
  EXPECT_THAT(say(rdzv::Leave{kNode, "SIGTERM"}), IsEmpty());
  EXPECT_TRUE(machine_.is_settled());
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
}

TEST_F(SessionMachineTest, WhoLeavesIsToldNothingMore) {
  settle_into_round(3);
  say(rdzv::Leave{kNode, "SIGTERM"});
  EXPECT_THAT(hear(rdzv::Evicted{kNode, 3, "not known"}), IsEmpty());
}

TEST_F(SessionMachineTest, ACloseIsRepeatedUntilTheResultIsTold) {
  settle_into_round(3);
  EXPECT_THAT(say(rdzv::Close{kNode, {}}), ElementsAre("close", "beat"));
  EXPECT_THAT(reconnect(), ElementsAre("greet", "resume working in 3", "close", "beat"));
  EXPECT_THAT(hear(rdzv::Closed{kNode, std::make_shared<const JobResult>()}),
              ElementsAre("told: closed"));
}

TEST_F(SessionMachineTest, ACloseNeedsNoJoin) {
  begin();
  step(M::Connected{});
  EXPECT_THAT(say(rdzv::Close{kNode, {}}), ElementsAre("greet", "close", "beat"));
  EXPECT_THAT(hear(rdzv::Closed{kNode, std::make_shared<const JobResult>()}),
              ElementsAre("told: closed"));
}

TEST_F(SessionMachineTest, WhatIsToldTwiceIsHeardOnce) {
  const auto result = std::make_shared<const JobResult>();
  settle_into_round(3);
  EXPECT_THAT(hear(round(3)), IsEmpty());
  EXPECT_THAT(hear(round(2)), IsEmpty());
  const rdzv::Restart restart{kNode, 3, rdzv::RestartCause::kGrowth, "a node waits", 30s};
  EXPECT_THAT(hear(restart), ElementsAre("told: restart 3"));
  EXPECT_THAT(hear(restart), IsEmpty());
  EXPECT_THAT(hear(rdzv::RoundOver{kNode, 3}), ElementsAre("told: round over"));
  EXPECT_THAT(hear(rdzv::RoundOver{kNode, 3}), IsEmpty());
  EXPECT_THAT(hear(rdzv::Closed{kNode, result}), ElementsAre("told: closed"));
  EXPECT_THAT(hear(rdzv::Closed{kNode, result}), IsEmpty());
}

TEST_F(SessionMachineTest, WhatMattersToTheSessionAloneIsNotTold) {
  settle_into_round(3);
  EXPECT_THAT(hear(rdzv::Resumed{kNode, 3}), IsEmpty());
  EXPECT_THAT(hear(rdzv::Superseded{kNode, 3}), IsEmpty());
}

TEST_F(SessionMachineTest, AJoinNamesTheHighestRoundThatWasToldInAnyWay) {
  settle_in();
  hear(rdzv::Restart{kNode, 5, rdzv::RestartCause::kMemberLost, "why", 30s});
  EXPECT_THAT(say(join()), ElementsAre("join after 5"));
  hear(rdzv::Evicted{kNode, 8, "no sign of life"});
  EXPECT_THAT(say(join(2)), ElementsAre("join after 8", "beat"));
  EXPECT_THAT(hear(round(8)), IsEmpty());
}

TEST_F(SessionMachineTest, AnEvictionIsToldOnceAndNothingIsSaidBeforeTheNextJoin) {
  settle_into_round(3);
  EXPECT_THAT(hear(rdzv::Evicted{kNode, 3, "no sign of life"}), ElementsAre("told: evicted"));
  EXPECT_THAT(hear(rdzv::Evicted{kNode, 3, "no sign of life"}), IsEmpty());
  EXPECT_THAT(say(rdzv::Gone{kNode, 3}), IsEmpty());
  EXPECT_THAT(after(10s), IsEmpty());
  EXPECT_THAT(reconnect(), IsEmpty());
  EXPECT_THAT(say(join(3)), ElementsAre("greet", "join after 3", "beat"));
}

TEST_F(SessionMachineTest, ANodeThatWasLostWhileItWaitedDoneGoesBackToWaitOnce) {
  settle_into_round(3);
  say(rdzv::Done{kNode, 3});
  EXPECT_THAT(hear(rdzv::Evicted{kNode, 3, "no sign of life"}), ElementsAre("resume done in 3"));
  EXPECT_THAT(hear(rdzv::Evicted{kNode, 3, "not known"}), ElementsAre("told: evicted"));
}

TEST_F(SessionMachineTest, BeatsSeveralTimesInEachNodeTimeout) {
  settle_in();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(machine_.next_deadline(), now_ + 1s);
    EXPECT_THAT(after(999ms), IsEmpty());
    EXPECT_THAT(after(1ms), ElementsAre("beat"));
    answer_beat();
  }
}

TEST_F(SessionMachineTest, AnUnansweredBeatStartsASecondConnectionAndTheFirstToSpeakIsKept) {
  settle_in();
  EXPECT_THAT(after(1s), ElementsAre("beat"));
  EXPECT_THAT(after(1s), ElementsAre("beat", "connect"));
  // The old one speaks first: nothing has happened.
  EXPECT_THAT(answer_beat(), ElementsAre("abandon"));
  EXPECT_THAT(after(1s), ElementsAre("beat"));
  EXPECT_THAT(after(1s), ElementsAre("beat", "connect"));
  // The new one does: the node goes on there.
  EXPECT_THAT(step(M::Connected{}), ElementsAre("greet", "resume joined", "beat"));
}

TEST_F(SessionMachineTest, TheFirstReconnectIsAtOnceAndLaterOnesAreAtMostASecondApart) {
  settle_in();
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

TEST_F(SessionMachineTest, GivesTheCoordinatorUpAfterStoreGrace) {
  settle_into_round(1);
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(59s), testing::Contains("connect"));
  EXPECT_THAT(after(1s),
              ElementsAre("abandon", "lost " + std::to_string(kExitCoordinatorLost) +
                                         ": the coordinator at node1:29400 was not reached for "
                                         "60 s: refused"));
  EXPECT_EQ(machine_.next_deadline(), std::nullopt);
  EXPECT_THAT(step(M::Connected{}), IsEmpty());
  EXPECT_TRUE(machine_.is_settled());
}

TEST_F(SessionMachineTest, BeforeTheFirstSuccessTheJoinDeadlineCounts) {
  begin();
  fail_attempt();
  after(599s);
  EXPECT_THAT(after(1s),
              ElementsAre("abandon", "lost " + std::to_string(kExitJoinTimedOut) +
                                         ": no coordinator was found at node1:29400 within 600 s: "
                                         "refused"));
}

TEST_F(SessionMachineTest, SaysEveryTenSecondsWhatItWaitsFor) {
  begin();
  fail_attempt();
  EXPECT_THAT(after(9s), ElementsAre("connect"));
  fail_attempt();
  for (const char* left : {"590 s", "580 s"}) {
    now_ += left[1] == '9' ? 1s : 10s;
    EXPECT_THAT(step(M::Tick{}),
                testing::Contains(AllOf(HasSubstr("waiting for a coordinator at node1:29400"),
                                        HasSubstr("refused"), HasSubstr(left))));
    fail_attempt();
  }
}

TEST_F(SessionMachineTest, ALostCoordinatorIsNotedWhenTheFirstReconnectFailsAndWhenItIsBack) {
  settle_in();
  EXPECT_THAT(lose_connection(), ElementsAre("connect"));
  EXPECT_THAT(fail_attempt(), ElementsAre(HasSubstr("note: the coordinator at node1:29400 cannot "
                                                    "be reached: refused; trying for another")));
  after(1s);
  EXPECT_THAT(step(M::Connected{}),
              ElementsAre("note: the coordinator at node1:29400 answers again", "greet",
                          "resume joined", "beat"));
}

TEST_F(SessionMachineTest, AnAttemptThatCannotSucceedEndsTheSearchUnlessOneHas) {
  const M::AttemptFailed foreign{Status(StatusCode::kPeerViolation, "it is a web server"),
                                 kExitRefused};
  begin();
  EXPECT_THAT(step(foreign),
              ElementsAre("lost " + std::to_string(kExitRefused) + ": it is a web server"));
  M other(settings(), {"node1:29400"}, 8);
  std::vector<M::Action> actions;
  other.begin(now_, &actions);
  other.step(M::Connected{}, now_, &actions);
  other.step(M::ConnectionLost{}, now_, &actions);
  actions.clear();
  other.step(foreign, now_, &actions);
  EXPECT_THAT(texts_of(actions), ElementsAre(HasSubstr("note: ")));
}

TEST_F(SessionMachineTest, WithTheResultKnownALostConnectionMattersToNobody) {
  settle_into_round(3);
  hear(rdzv::Closed{kNode, std::make_shared<const JobResult>()});
  say(rdzv::Leave{kNode, "the job is over"});
  EXPECT_FALSE(machine_.is_settled());
  EXPECT_THAT(lose_connection(), IsEmpty());
  EXPECT_TRUE(machine_.is_settled());
}

TEST_F(SessionMachineTest, ARefusedNodeMayJoinAgain) {
  settle_in();
  EXPECT_THAT(hear(rdzv::Refused{kNode, Status(StatusCode::kInvalidArgument, "no")}),
              ElementsAre("told: refused"));
  EXPECT_THAT(lose_connection(), IsEmpty());
  EXPECT_THAT(say(join()), ElementsAre("connect"));
}

TEST_F(SessionMachineTest, OnlyABeatThatWasSentLaterProvesThatAStatementWasHeard) {
  settle_into_round(3);
  EXPECT_TRUE(machine_.is_settled());
  after(1s);  // a beat is on its way
  const Instant before = last_beat_;
  say(rdzv::Done{kNode, 3});
  step(M::BeatAnswered{before, now_});
  EXPECT_FALSE(machine_.is_settled());
  EXPECT_THAT(step(M::Hurry{}), ElementsAre("beat"));
  EXPECT_THAT(step(M::Hurry{}), IsEmpty());
  answer_beat();
  EXPECT_TRUE(machine_.is_settled());
}

TEST_F(SessionMachineTest, TheShortestRoundTripTellsTheOtherClock) {
  settle_in();
  const Duration ahead = 3h;
  for (const Duration trip : {40ms, 2ms, 90ms}) {
    after(1s);
    now_ += trip;
    // The way there takes all of the time, the way back none.
    step(M::BeatAnswered{last_beat_, now_ + ahead});
  }
  greeted(2, ahead);  // out of order, but another coordinator: nothing of before counts
  EXPECT_GT(machine_.clock_offset(), ahead - 100ms);
  after(1s);
  now_ += 2ms;
  answer_beat(ahead);
  EXPECT_NEAR(to_seconds(machine_.clock_offset()), to_seconds(ahead), 0.0011);
}

TEST_F(SessionMachineTest, FailuresAreToldOnTheCoordinatorsClock) {
  begin();
  step(M::Connected{});
  say(join());
  greeted(1, 1h);
  hear(round(3));
  const Instant at = now_;
  now_ += 5s;
  say(rdzv::Failed{kNode, 3, failure_at(at)});
  EXPECT_EQ(std::get<rdzv::Failed>(last_sent_).failure.at, at + 1h);
  // A new coordinator on another host: its clock is learned before the failure is told.
  EXPECT_THAT(reconnect(), ElementsAre("greet"));
  greeted(2, 7h);
  EXPECT_EQ(std::get<rdzv::Resume>(last_sent_).failure->at, at + 7h);
}

TEST_F(SessionMachineTest, AReplyToNothingThatWasAskedTeachesNothing) {
  settle_in();
  step(M::BeatAnswered{now_ + 1h, now_ + 9h});
  EXPECT_EQ(machine_.clock_offset(), 0ns);
}

JobSettings with_node_timeout(Duration timeout) {
  JobSettings job = settings();
  job.node_timeout = timeout;
  return job;
}

// A node with node_timeout=60 in a job with 2 was evicted every two seconds: its beats were too
// rare.
TEST_F(SessionMachineTest, BeatsAsTheTimingsOfTheJobDemand) {
  settle_into_round(1);
  const auto note = step(M::TimingsReceived{with_node_timeout(1s)});
  EXPECT_THAT(note, ElementsAre("note: the job's timings, which its first node brought, replace "
                                "those of this node: node_timeout is 1 s (here 8 s)"));
  int beats = 0;
  for (int i = 0; i < 10; ++i) {
    for (const std::string& text : after(100ms)) beats += text == "beat";
    answer_beat();
  }
  EXPECT_GE(beats, 5);
  EXPECT_THAT(step(M::TimingsReceived{with_node_timeout(1s)}), IsEmpty()) << "noted once";
  EXPECT_THAT(step(M::TimingsReceived{settings()}), IsEmpty()) << "nothing differs any more";
}

TEST_F(SessionMachineTest, GivesUpWhenTheTimingsOfTheJobSay) {
  settle_into_round(1);
  JobSettings job = settings();
  job.store_grace = 3s;
  step(M::TimingsReceived{job});
  lose_connection();
  fail_attempt();
  after(2900ms);
  EXPECT_THAT(after(100ms), ::testing::Contains(HasSubstr("lost 77: ")));
}

// The host gave up with 75 and the others with 77, a minute later.
TEST_F(SessionMachineTest, ANodeThatWasNeverInARoundUsesTheJoinTimeout) {
  settle_in();
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(599s), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
  EXPECT_THAT(after(1s), ::testing::Contains(AllOf(HasSubstr("lost 75: the coordinator at "
                                                             "node1:29400 was not reached"),
                                                   HasSubstr("600 s"))));
}

TEST_F(SessionMachineTest, TheReasonThatTheCoordinatorGaveIsNamedWhenItIsNotFoundAgain) {
  settle_into_round(1);
  step(M::CoordinatorLeaves{"the job of its agent succeeded"});
  lose_connection();
  fail_attempt();
  EXPECT_THAT(after(60s), ::testing::Contains(AllOf(HasSubstr("lost 77"),
                                                    HasSubstr("the job of its agent succeeded"))));
}

TEST_F(SessionMachineTest, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  settle_into_round(1);
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
  settle_into_round(1);
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
  say(join());
  const auto greet = [&] {
    std::vector<M::Action> actions;
    machine_.step(M::Connected{}, now_, &actions);
    return std::get<M::Greet>(actions.front());
  };
  EXPECT_EQ(greet().attempt, 1u);
  step(M::Greeted{1, now_, 5});
  lose_connection();
  const M::Greet second = greet();
  EXPECT_EQ(second.attempt, 2u);
  EXPECT_EQ(second.term, 5u);
}

}  // namespace
}  // namespace elastic::core
