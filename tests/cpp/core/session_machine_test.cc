#include "core/session_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "elastic/agent.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using M = SessionMachine;

constexpr NodeId kNode{1, 2};

JobSettings settings() {
  JobSettings job;
  job.min_nodes = 2;
  job.max_nodes = 4;
  job.node_timeout = 8s;
  job.store_grace = 60s;
  job.join_timeout = 600s;
  return job;
}

rdzv::Join join(std::uint64_t highest_round = 0) {
  rdzv::Join said;
  said.node.id = kNode;
  said.node.name = "10.0.0.7_1_0";
  said.node.highest_round = highest_round;
  said.settings = settings();
  return said;
}

rdzv::Round round(std::uint64_t number, int rank = 1) {
  RoundRecord record;
  record.round = number;
  record.nodes = 2;
  return {kNode, std::make_shared<const RoundRecord>(record), {.group_rank = rank}};
}

FailureReport failure_at(Instant at) {
  FailureReport failure;
  failure.exit_code = 3;
  failure.at = at;
  return failure;
}

const char* text_of(rdzv::NodePhase phase) {
  switch (phase) {
    case rdzv::NodePhase::kJoined: return "joined";
    case rdzv::NodePhase::kWorking: return "working";
    case rdzv::NodePhase::kStopped: return "stopped";
    case rdzv::NodePhase::kDone: return "done";
  }
  return "?";
}

std::string text_of(const RendezvousEvent& event) {
  if (const auto* said = std::get_if<rdzv::Join>(&event)) {
    return "join after " + std::to_string(said->node.highest_round);
  }
  if (const auto* said = std::get_if<rdzv::Resume>(&event)) {
    return std::string("resume ") + text_of(said->phase) +
           (said->last ? " in " + std::to_string(said->last->record.round) : "") +
           (said->failure ? " with a failure" : "");
  }
  if (const auto* said = std::get_if<rdzv::Failed>(&event)) {
    return "failed in " + std::to_string(said->round);
  }
  if (const auto* said = std::get_if<rdzv::Gone>(&event)) {
    return "gone of " + std::to_string(said->round);
  }
  if (const auto* said = std::get_if<rdzv::Done>(&event)) {
    return "done in " + std::to_string(said->round);
  }
  if (std::holds_alternative<rdzv::Leave>(event)) return "leave";
  if (std::holds_alternative<rdzv::Close>(event)) return "close";
  return "?";
}

std::string text_of(const RendezvousAction& action) {
  if (const auto* told = std::get_if<rdzv::Round>(&action)) {
    return "round " + std::to_string(told->record->round);
  }
  if (const auto* told = std::get_if<rdzv::Restart>(&action)) {
    return "restart " + std::to_string(told->round);
  }
  if (std::holds_alternative<rdzv::Waiting>(action)) return "waiting";
  if (std::holds_alternative<rdzv::Evicted>(action)) return "evicted";
  if (std::holds_alternative<rdzv::Refused>(action)) return "refused";
  if (std::holds_alternative<rdzv::TimedOut>(action)) return "timed out";
  if (std::holds_alternative<rdzv::Closed>(action)) return "closed";
  if (std::holds_alternative<rdzv::RoundOver>(action)) return "round over";
  return "?";
}

std::string text_of(const M::Action& action) {
  if (std::holds_alternative<M::Connect>(action)) return "connect";
  if (std::holds_alternative<M::Abandon>(action)) return "abandon";
  if (std::holds_alternative<M::Greet>(action)) return "greet";
  if (std::holds_alternative<M::Beat>(action)) return "beat";
  if (const auto* said = std::get_if<M::Send>(&action)) return text_of(said->event);
  if (const auto* told = std::get_if<M::Deliver>(&action)) return "told: " + text_of(told->action);
  if (const auto* noted = std::get_if<M::Note>(&action)) return "note: " + noted->sentence;
  const auto& lost = std::get<M::Lost>(action);
  return "lost " + std::to_string(lost.exit_code) + ": " + lost.sentence;
}

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
  M machine_{settings(), "node1:29400", 7};
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
  settle_in();
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
  M other(settings(), "node1:29400", 8);
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

// Any order of events: what is promised to the one who carries the actions out.
class SessionMachineProperties : public ::testing::TestWithParam<int> {
 protected:
  void feed(const M::Event& event) {
    std::vector<M::Action> actions;
    machine_.step(event, now_, &actions);
    judge(event, actions);
  }
  void judge(const M::Event& event, const std::vector<M::Action>& actions) {
    for (const M::Action& action : actions) {
      const std::string text = text_of(action);
      ASSERT_FALSE(is_lost_) << text << " after the end";
      if (std::holds_alternative<M::Say>(event)) {
        ASSERT_TRUE(!std::holds_alternative<M::Deliver>(action) &&
                    !std::holds_alternative<M::Note>(action) &&
                    !std::holds_alternative<M::Lost>(action))
            << text << " inside of a call";
      }
      if (std::holds_alternative<M::Connect>(action)) {
        ASSERT_FALSE(is_attempting_);
        is_attempting_ = true;
      } else if (std::holds_alternative<M::Abandon>(action)) {
        ASSERT_TRUE(is_attempting_);
        is_attempting_ = false;
      } else if (std::holds_alternative<M::Greet>(action)) {
        ASSERT_TRUE(is_open_);
        ASSERT_FALSE(is_greeted_);
        is_greeted_ = true;
      } else if (std::holds_alternative<M::Send>(action) ||
                 std::holds_alternative<M::Beat>(action)) {
        ASSERT_TRUE(is_open_ && is_greeted_) << text << " without a greeted connection";
      } else if (const auto* told = std::get_if<M::Deliver>(&action)) {
        if (const auto* one = std::get_if<rdzv::Round>(&told->action)) {
          ASSERT_GT(one->record->round, round_);
          round_ = one->record->round;
        }
      } else if (std::holds_alternative<M::Lost>(action)) {
        is_lost_ = true;
      }
    }
  }
  void random_event(Rng* rng) {
    const auto pick = [rng](std::uint64_t n) { return rng->next() % n; };
    now_ += Duration(static_cast<Duration::rep>(pick(700'000'000)));
    const std::uint64_t number = round_ + pick(3);
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
        if (!is_attempting_) break;
        is_attempting_ = false;
        is_open_ = true;
        is_greeted_ = false;
        feed(M::Connected{});
        break;
      case 3:
        if (!is_attempting_) break;
        is_attempting_ = false;
        feed(M::AttemptFailed{Status(StatusCode::kUnavailable, "refused"), std::nullopt});
        break;
      case 4:
        if (!is_open_) break;
        is_open_ = false;
        feed(M::ConnectionLost{Status(StatusCode::kUnavailable, "reset")});
        break;
      case 5: feed(M::Say{join(number)}); break;
      case 6: feed(M::Say{rdzv::Gone{kNode, number}}); break;
      case 7: feed(M::Say{rdzv::Failed{kNode, number, failure_at(now_)}}); break;
      case 8: feed(M::Say{rdzv::Done{kNode, number}}); break;
      case 9:
        if (pick(20) == 0) feed(M::Say{rdzv::Leave{kNode, "SIGTERM"}});
        break;
      case 10:
        if (is_greeted_ && is_open_) feed(M::Greeted{pick(3), now_});
        break;
      case 11:
        if (is_greeted_ && is_open_) feed(M::BeatAnswered{now_ - Duration(pick(9)), now_});
        break;
      case 12:
        if (is_open_) feed(M::Heard{round(number)});
        break;
      case 13:
        if (is_open_) feed(M::Heard{rdzv::Restart{kNode, number, {}, "why", 1s}});
        break;
      case 14:
        if (is_open_) feed(M::Heard{rdzv::Evicted{kNode, number, "why"}});
        break;
      default: feed(M::Hurry{}); break;
    }
  }

  Instant now_ = Instant(1h);
  M machine_{settings(), "node1:29400", static_cast<std::uint64_t>(GetParam())};
  bool is_attempting_ = false;
  bool is_open_ = false;
  bool is_greeted_ = false;
  bool is_lost_ = false;
  std::uint64_t round_ = 0;
};

TEST_P(SessionMachineProperties, HoldInEveryOrderOfEvents) {
  Rng rng(static_cast<std::uint64_t>(GetParam()));
  std::vector<M::Action> actions;
  machine_.begin(now_, &actions);
  judge(M::Tick{}, actions);
  for (int i = 0; i < 400 && !is_lost_; ++i) {
    random_event(&rng);
    if (HasFatalFailure()) return;
    feed(M::Tick{});
    if (HasFatalFailure()) return;
    // A tick leaves nothing due: a loop that obeys the deadline does not spin.
    const auto next = machine_.next_deadline();
    ASSERT_TRUE(!next || *next > now_);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SessionMachineProperties, ::testing::Range(1, 200));

}  // namespace
}  // namespace elastic::core
