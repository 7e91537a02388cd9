#include "core/hang/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "elastic/agent.h"

namespace elastic::core {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

// A job of two nodes with two ranks each.
class HangWatchTest : public ::testing::Test {
 protected:
  HangWatchTest() {
    for (int i = 0; i < 2; ++i) step(hang_event::Began{node(i), 1, "host" + std::to_string(i)});
  }

  static NodeId node(int index) { return {1, static_cast<std::uint64_t>(index)}; }

  void step(const HangEvent& event) { watch_.step(event, now_, &answers_); }
  void report(int index, std::int64_t step_number, Duration limit = {},
              hang::Action action = hang::Action::kReport, Duration section_limit = {}) {
    hang::NodeProgress progress;
    progress.round = 1;
    progress.reporting = 2;
    progress.newest = progress.oldest = step_number;
    progress.slowest_rank = 2 * index;
    progress.limit = limit;
    progress.action = action;
    progress.section_limit = section_limit;
    step(hang_event::Progressed{node(index), progress});
  }
  // Runs the timers for this long, or until there are answers.
  void wait(Duration duration) {
    const Instant end = now_ + duration;
    while (answers_.empty()) {
      const auto next = watch_.next_deadline();
      if (!next || *next > end) break;
      now_ = std::max(now_, *next);
      step(hang_event::Tick{});
    }
    if (answers_.empty()) now_ = end;
  }
  void reply(int index, std::vector<hang::StackGroup> groups, std::uint64_t request) {
    step(hang_event::StacksReceived{
        node(index), {.request = request, .host = "h" + std::to_string(index), .groups = groups}});
  }
  void finish(std::int32_t rank, Duration limit, std::uint64_t round = 1) {
    step(hang_event::Finished{{.round = round, .rank = rank, .limit = limit}});
  }
  template <typename Action>
  Action take() {
    EXPECT_FALSE(answers_.empty());
    if (answers_.empty()) return {};
    EXPECT_TRUE(std::holds_alternative<Action>(answers_.front()));
    Action action = std::get<Action>(answers_.front());
    answers_.erase(answers_.begin());
    return action;
  }

  static hang::StackGroup group(std::vector<std::int32_t> ranks, hang::StackGroup::Kind kind,
                                std::string label) {
    return {.ranks = std::move(ranks),
            .oldest = 3,
            .kind = kind,
            .label = std::move(label),
            .text = ""};
  }
  static hang::StackGroup waiting(std::vector<std::int32_t> ranks) {
    return group(std::move(ranks), hang::StackGroup::Kind::kWaiting, "in all_reduce (train.py:88)");
  }

  // The verdict of a hang in which these ranks of node 0, and those of node 1, are at one place.
  std::int32_t suspect_at_one_place(std::vector<std::int32_t> ranks) {
    report(0, 3, seconds(5), hang::Action::kFail);
    report(1, 3, seconds(5));
    wait(seconds(60));
    const auto asked = take<hang_action::Ask>();
    reply(1, {waiting({2, 3})}, asked.wanted.request);
    reply(0, {waiting(std::move(ranks))}, asked.wanted.request);
    const hang::Verdict verdict = take<hang_action::Publish>().verdict;
    EXPECT_THAT(verdict.text, Not(HasSubstr("suspected")));
    return verdict.suspect;
  }

  Instant now_{seconds(1000)};
  HangWatch watch_;
  std::vector<HangAnswer> answers_;
};

TEST_F(HangWatchTest, NothingIsJudgedBeforeTheFirstStep) {
  EXPECT_EQ(watch_.next_deadline(), std::nullopt);
  wait(hours(24));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HangWatchTest, GivesAVerdictAfterTheLimitAndNamesTheSuspect) {
  report(0, 3, seconds(5), hang::Action::kRestart);
  report(1, 3, seconds(9));
  const Instant begun = now_;
  wait(seconds(60));
  EXPECT_EQ(now_ - begun, seconds(5));
  const auto asked = take<hang_action::Ask>();
  reply(0, {waiting({0, 1})}, asked.wanted.request);
  EXPECT_TRUE(answers_.empty());
  reply(1, {waiting({2}), group({3}, hang::StackGroup::Kind::kAtWork, "in read (data.py:41)")},
        asked.wanted.request);
  const hang::Verdict verdict = take<hang_action::Publish>().verdict;
  EXPECT_EQ(verdict.suspect, 3);
  EXPECT_EQ(verdict.action, hang::Action::kRestart);
  EXPECT_EQ(verdict.round, 1U);
  EXPECT_THAT(verdict.text, HasSubstr("3 ranks (0-2) in all_reduce (train.py:88)"));
  EXPECT_THAT(verdict.text, HasSubstr("rank 3 on h1 in read (data.py:41): suspected"));
  EXPECT_THAT(verdict.cause, HasSubstr("no rank made progress for 5 s"));
  // One verdict for one hang.
  wait(hours(1));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HangWatchTest, AHangIsKnownUntilARankMakesProgress) {
  report(0, 3, seconds(5));
  report(1, 4, seconds(5));
  const Instant progressed = now_;
  EXPECT_EQ(watch_.hang(), std::nullopt);
  wait(seconds(60));
  EXPECT_EQ(watch_.hang(), (hang::Hang{progressed, 4, -1, ""})) << "the stacks are not here yet";
  const auto asked = take<hang_action::Ask>();
  reply(0, {waiting({0, 1})}, asked.wanted.request);
  reply(1, {waiting({2}), group({3}, hang::StackGroup::Kind::kAtWork, "in read (data.py:41)")},
        asked.wanted.request);
  EXPECT_EQ(watch_.hang(), (hang::Hang{progressed, 4, 3, "in read (data.py:41)"}));
  step(hang_event::ClockGap{seconds(2)});
  EXPECT_EQ(watch_.hang()->progressed, progressed + seconds(2));
  report(1, 5, seconds(5));
  EXPECT_EQ(watch_.hang(), std::nullopt);
}

TEST_F(HangWatchTest, PublishesWithoutTheNodeThatDoesNotReply) {
  report(0, 3, seconds(5));
  wait(seconds(60));
  const auto asked = take<hang_action::Ask>();
  reply(0, {waiting({0, 1})}, asked.wanted.request);
  wait(seconds(60));
  EXPECT_THAT(take<hang_action::Publish>().verdict.text, HasSubstr("host1 sent no stacks in time"));
}

TEST_F(HangWatchTest, ManyNodesThatDoNotReplyLeaveRoomForTheStackOfTheSuspect) {
  for (int i = 2; i < 1000; ++i) step(hang_event::Began{node(i), 1, "host" + std::to_string(i)});
  report(0, 3, seconds(5));
  wait(seconds(60));
  hang::StackGroup suspect = group({1}, hang::StackGroup::Kind::kAtWork, "in read (data.py:1)");
  suspect.text = "the stack";
  reply(0, {waiting({0}), suspect}, take<hang_action::Ask>().wanted.request);
  wait(seconds(60));
  const std::string text = take<hang_action::Publish>().verdict.text;
  EXPECT_THAT(text, HasSubstr("host16 sent no stacks in time\n  and 983 more nodes\n"));
  EXPECT_THAT(text, HasSubstr("the stack"));
}

TEST_F(HangWatchTest, ProgressOfAnyRankPostponesTheVerdict) {
  report(0, 1, seconds(5));
  report(1, 1, seconds(5));
  for (int i = 0; i < 10; ++i) {
    wait(seconds(4));
    report(0, 2 + i, seconds(5));
  }
  // Node 1 lags, which is reported once.
  EXPECT_THAT(take<hang_action::Publish>().verdict.text, HasSubstr("rank 2 on host1 is at step 1"));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HangWatchTest, ARankThatStopsWhileOthersAdvanceIsStraggling) {
  struct Case {
    Duration slowest_idle;  // of node 0's slowest rank
    Duration idle;          // of its other rank, and of node 1
    bool is_straggling;
    const char* what;
  };
  const std::vector<Case> cases = {
      {seconds(0), seconds(0), false, "all advance"},
      {seconds(4), seconds(0), false, "below the limit"},
      {seconds(5), seconds(0), true, "at the limit"},
      {seconds(60), seconds(2), true, "the others advanced after it had stopped"},
      {seconds(6), seconds(4), false, "all stopped at nearly the same time: the job will hang"},
  };
  for (const Case& one : cases) {
    HangWatch watch;
    answers_.clear();
    for (int i = 0; i < 2; ++i) {
      watch.step(hang_event::Began{node(i), 1, "host" + std::to_string(i)}, now_, &answers_);
    }
    hang::NodeProgress progress{.round = 1, .reporting = 2, .newest = 40, .oldest = 40};
    progress.limit = seconds(5);
    progress.idle = progress.slowest_idle = one.idle;
    watch.step(hang_event::Progressed{node(1), progress}, now_, &answers_);
    progress.oldest = 17;
    progress.slowest_rank = 1;
    progress.slowest_idle = one.slowest_idle;
    watch.step(hang_event::Progressed{node(0), progress}, now_, &answers_);
    ASSERT_EQ(answers_.size(), one.is_straggling ? 1U : 0U) << one.what;
    ASSERT_EQ(watch.stragglers().size(), answers_.size()) << one.what;
    if (!one.is_straggling) continue;
    const hang::Verdict verdict = take<hang_action::Publish>().verdict;
    EXPECT_TRUE(verdict.is_straggling);
    EXPECT_EQ(verdict.suspect, 1) << one.what;
    EXPECT_EQ(verdict.action, hang::Action::kReport);
    EXPECT_THAT(verdict.text, HasSubstr("rank 1 on host0 is at step 17 and has made no progress"));
    const hang::Straggler straggler{1, "host0", 17, now_ - one.slowest_idle};
    EXPECT_EQ(watch.stragglers().front(), straggler) << one.what;
    // Once, until it advances; then it is none.
    watch.step(hang_event::Progressed{node(0), progress}, now_, &answers_);
    EXPECT_TRUE(answers_.empty()) << one.what;
    progress.slowest_idle = one.idle;
    watch.step(hang_event::Progressed{node(0), progress}, now_, &answers_);
    EXPECT_TRUE(answers_.empty()) << one.what;
    EXPECT_TRUE(watch.stragglers().empty()) << one.what;
    // Another rank is reported again.
    progress.slowest_rank = 0;
    progress.slowest_idle = one.slowest_idle;
    watch.step(hang_event::Progressed{node(0), progress}, now_, &answers_);
    EXPECT_EQ(take<hang_action::Publish>().verdict.suspect, 0) << one.what;
  }
}

TEST_F(HangWatchTest, OneReportStandsForManyRanksThatStopWhileOthersAdvance) {
  const int last = static_cast<int>(kStragglersPublished) + 2;  // two too many lag: 1 to `last`
  for (int i = 0; i <= last; ++i) step(hang_event::Began{node(i), 1, "host" + std::to_string(i)});
  const auto advance = [&](int index, std::int64_t at) { report(index, at, seconds(5)); };
  const auto count = [&] { return std::exchange(answers_, {}).size(); };
  for (int i = 0; i <= last; ++i) advance(i, 1);
  now_ += seconds(60);
  advance(0, 2);
  ASSERT_EQ(watch_.num_stragglers(), static_cast<std::size_t>(last));
  EXPECT_THAT(
      take<hang_action::Publish>().verdict.text,
      HasSubstr(", while other ranks advance; ranks on 9 more nodes have made none either"));
  EXPECT_EQ(count(), 0u);
  // One that advances and stops again is one of many.
  advance(1, 2);
  now_ += seconds(60);
  advance(0, 3);
  EXPECT_EQ(count(), 0u);
  // When few lag, each one is reported.
  for (int i = 1; i <= last; ++i) advance(i, 3);
  now_ += seconds(4);
  for (int i = 0; i < last; ++i) advance(i, 4);
  now_ += seconds(4);
  advance(0, 5);
  EXPECT_EQ(count(), 1u);
}

TEST_F(HangWatchTest, WithoutASuspectRank0EndsTheJob) {
  EXPECT_EQ(suspect_at_one_place({0, 1}), -1);
}

TEST_F(HangWatchTest, WithoutASuspectTheFirstRankThatRunsEndsTheJob) {
  EXPECT_EQ(suspect_at_one_place({1}), 1);  // rank 0 has succeeded
}

TEST_F(HangWatchTest, SectionWithALimitWidensTheLimit) {
  report(0, 3, seconds(5), hang::Action::kReport, seconds(60));
  wait(seconds(59));
  EXPECT_TRUE(answers_.empty());
  wait(seconds(2));
  take<hang_action::Ask>();
}

TEST_F(HangWatchTest, LearnedLimitOnlyReportsAndIsWidenedByPauses) {
  for (int i = 0; i < 50; ++i) {
    report(0, i);
    wait(i % 10 == 0 ? seconds(30) : seconds(1));
  }
  EXPECT_EQ(watch_.limit(), seconds(30) * kLearnedLimitFactor);
  wait(seconds(30) * kLearnedLimitFactor);
  take<hang_action::Ask>();
  wait(seconds(10));
  EXPECT_EQ(take<hang_action::Publish>().verdict.action, hang::Action::kReport);
}

TEST_F(HangWatchTest, AnHourOfTrainingWithPausesOfTenStepsIsNoHang) {
  const Instant end = now_ + hours(1);
  for (int step_number = 0; now_ < end; ++step_number) {
    report(step_number % 2, step_number);
    wait(step_number % 100 == 0 ? milliseconds(20000) : milliseconds(2000));
    ASSERT_TRUE(answers_.empty());
  }
}

TEST_F(HangWatchTest, FirstStepsThatAreLongerThanTheSmallestLimitAreNoHang) {
  for (int step_number = 0; step_number <= kLearnedAdvances; ++step_number) {
    EXPECT_GE(watch_.limit(), kUnlearnedLimit);
    for (int i = 0; i < 2; ++i) report(i, step_number);
    wait(seconds(100));
    ASSERT_TRUE(answers_.empty());
  }
  EXPECT_EQ(watch_.limit(), seconds(100) * kLearnedLimitFactor);
}

TEST_F(HangWatchTest, ShortStepsAreKnownAfterSomeOfThem) {
  for (int step_number = 0; step_number <= kLearnedAdvances; ++step_number) {
    report(0, step_number);
    EXPECT_EQ(watch_.limit(), step_number < kLearnedAdvances ? kUnlearnedLimit : kLearnedLimitMin);
    wait(seconds(1));
  }
  wait(kLearnedLimitMin);
  take<hang_action::Ask>();
}

TEST_F(HangWatchTest, EndOfTheRoundEndsTheJudgement) {
  report(0, 3, seconds(5));
  step(hang_event::Ended{});
  wait(hours(1));
  EXPECT_TRUE(answers_.empty());
  // A report of the round that is over changes nothing.
  step(hang_event::Began{node(0), 2, "host0"});
  report(0, 4, seconds(5));
  EXPECT_EQ(watch_.next_deadline(), std::nullopt);
}

TEST_F(HangWatchTest, NodesWhoseWorkersAreDoneDoNotCount) {
  report(0, 3, seconds(5));
  hang::NodeProgress done;
  done.round = 1;
  step(hang_event::Progressed{node(0), done});
  wait(hours(1));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HangWatchTest, GapOfTheProcessIsNotCounted) {
  report(0, 3, seconds(5));
  now_ += seconds(20);
  step(hang_event::ClockGap{seconds(20)});
  step(hang_event::Tick{});
  EXPECT_TRUE(answers_.empty());
  wait(seconds(6));
  take<hang_action::Ask>();
}

TEST_F(HangWatchTest, GapOfTheProcessIsNoTimeToResume) {
  step(hang_event::Began{node(0), 2, "host0", seconds(10)});
  hang::NodeProgress progress{.round = 2, .reporting = 2, .newest = 3, .oldest = 3};
  progress.limit = seconds(1);
  step(hang_event::Progressed{node(0), progress});
  const Instant begun = now_;
  now_ += seconds(20);
  step(hang_event::ClockGap{seconds(20)});
  wait(hours(1));
  EXPECT_EQ(now_ - begun, seconds(30));
  take<hang_action::Ask>();
}

TEST_F(HangWatchTest, ObserversReceiveTheStacksOfARunningJob) {
  step(hang_event::Requested{7});
  step(hang_event::Requested{8});
  const auto asked = take<hang_action::Ask>();
  reply(0, {waiting({0, 1})}, asked.wanted.request);
  reply(0, {waiting({0, 1})}, asked.wanted.request);      // a repetition
  reply(1, {waiting({2, 3})}, asked.wanted.request + 1);  // of another request
  EXPECT_TRUE(answers_.empty());
  step(hang_event::Left{node(1)});
  wait(seconds(10));
  for (const std::uint64_t observer : {7U, 8U}) {
    const auto sent = take<hang_action::Reply>();
    EXPECT_EQ(sent.observer, observer);
    EXPECT_THAT(sent.text, HasSubstr("2 ranks (0-1) in all_reduce"));
  }
  EXPECT_TRUE(answers_.empty());
}

// Each collection interrupts all workers.
TEST_F(HangWatchTest, ARequestSoonAfterACollectionReceivesItsStacks) {
  const auto collect = [&](const std::string& label) {
    const auto asked = take<hang_action::Ask>();
    for (const int i : {0, 1}) {
      reply(i, {group({2 * i}, hang::StackGroup::Kind::kAtWork, label)}, asked.wanted.request);
    }
    EXPECT_THAT(take<hang_action::Reply>().text, HasSubstr(label));
  };
  step(hang_event::Requested{7});
  collect("in first");
  now_ += seconds(9);
  step(hang_event::Requested{8});
  const auto again = take<hang_action::Reply>();
  EXPECT_EQ(again.observer, 8U);
  EXPECT_THAT(again.text, HasSubstr("in first"));
  EXPECT_THAT(again.text, HasSubstr("9 s old"));
  EXPECT_TRUE(answers_.empty());
  now_ += seconds(1);
  step(hang_event::Requested{9});
  collect("in second");
  step(hang_event::Began{node(0), 2, "host0"});
  step(hang_event::Requested{10});
  take<hang_action::Ask>();  // of another round nothing is known
}

TEST_F(HangWatchTest, ObserverOfAJobWithoutARoundIsAnswered) {
  step(hang_event::Ended{});
  step(hang_event::Requested{7});
  EXPECT_THAT(take<hang_action::Reply>().text, HasSubstr("no round"));
}

// ---- Ranks that run long after another one has exited.

TEST_F(HangWatchTest, PartialExitClosesTheJobWithTheStacks) {
  finish(1, seconds(10));
  finish(2, seconds(30));  // a longer time of a later rank
  const Instant begun = now_;
  wait(hours(1));
  EXPECT_EQ(now_ - begun, seconds(10));
  const auto asked = take<hang_action::Ask>();
  reply(0, {waiting({0})}, asked.wanted.request);
  reply(1, {group({3}, hang::StackGroup::Kind::kAtWork, "in save (train.py:41)")},
        asked.wanted.request);
  const hang::Verdict report = take<hang_action::Publish>().verdict;
  EXPECT_EQ(report.action, hang::Action::kReport);
  EXPECT_EQ(report.round, 1U);
  EXPECT_THAT(report.text, HasSubstr("rank 0 on h0 in all_reduce (train.py:88)\n"));
  EXPECT_THAT(report.text, HasSubstr("rank 3 on h1 in save (train.py:41)"));
  const JobResult result = take<hang_action::Close>().result;
  EXPECT_EQ(result.outcome, JobOutcome::kFailed);
  EXPECT_EQ(result.exit_code, kExitPartial);
  EXPECT_EQ(result.message,
            "partial exit: rank 1 exited with 0, and 10 s later still running: 2 ranks (0,3)");
  wait(hours(1));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HangWatchTest, ShortestTimeOfAllNodesEndsTheJob) {
  finish(1, seconds(30));
  now_ += seconds(5);
  finish(2, seconds(10));
  const Instant begun = now_;
  wait(hours(1));
  EXPECT_EQ(now_ - begun, seconds(10));
  take<hang_action::Ask>();
  wait(seconds(10));  // no node replies
  take<hang_action::Publish>();
  EXPECT_EQ(take<hang_action::Close>().result.message,
            "partial exit: rank 1 exited with 0, and 15 s later still running: other ranks");
}

TEST_F(HangWatchTest, NothingIsClosedIfAllRanksHaveEndedMeanwhile) {
  finish(1, seconds(10));
  wait(hours(1));
  const auto asked = take<hang_action::Ask>();
  reply(0, {}, asked.wanted.request);
  reply(1, {}, asked.wanted.request);
  wait(hours(1));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HangWatchTest, ExitsOfOtherRoundsDoNotCount) {
  finish(0, seconds(10), 2);
  EXPECT_EQ(watch_.next_deadline(), std::nullopt);
  // The end of the round ends the time, also while stacks are collected.
  finish(0, seconds(10));
  step(hang_event::Ended{});
  EXPECT_EQ(watch_.next_deadline(), std::nullopt);
  step(hang_event::Began{node(0), 2, "host0"});
  finish(0, seconds(10), 2);
  wait(hours(1));
  take<hang_action::Ask>();
  step(hang_event::Ended{});
  wait(hours(1));
  EXPECT_TRUE(answers_.empty());
}

// A node whose workers are done sends it to a new coordinator before the round is known there, and
// is no node with workers of it.
TEST_F(HangWatchTest, ExitMayBeKnownBeforeItsRound) {
  for (const std::uint64_t round : {7U, 8U}) {
    HangWatch fresh;
    std::vector<HangAnswer> answers;
    fresh.step(hang_event::Finished{{.round = 7, .rank = 0, .limit = seconds(10)}}, now_, &answers);
    EXPECT_EQ(fresh.next_deadline(), std::nullopt);
    fresh.step(hang_event::Began{node(1), round, "host1"}, now_ + seconds(1), &answers);
    const bool is_limited = round == 7;
    EXPECT_EQ(fresh.next_deadline(), is_limited ? std::optional(now_ + seconds(10)) : std::nullopt);
    fresh.step(hang_event::Tick{}, now_ + seconds(10), &answers);
    EXPECT_EQ(answers.size(), is_limited ? 1U : 0U);
  }
}

// Node 1 has made no progress for 9 s when it resumes; node 0, which resumes later, has advanced.
TEST_F(HangWatchTest, AtANewCoordinatorNothingIsJudgedWhileNodesMayResume) {
  for (const bool advances : {false, true}) {
    watch_ = {};
    const auto resume = [&](int index, std::int64_t step_number, Duration idle) {
      step(hang_event::Began{node(index), 1, "host" + std::to_string(index), seconds(6)});
      hang::NodeProgress progress{.round = 1, .reporting = 2, .newest = step_number};
      progress.oldest = step_number;
      progress.limit = seconds(10);
      progress.idle = progress.slowest_idle = idle;
      step(hang_event::Progressed{node(index), progress});
    };
    const Instant lost = now_;
    resume(1, 3, seconds(9));
    wait(seconds(5));
    EXPECT_EQ(now_ - lost, seconds(5)) << "the limit has passed for the only node that is known";
    resume(0, advances ? 4 : 3, advances ? seconds(0) : seconds(14));
    wait(hours(1));
    EXPECT_EQ(now_ - lost, advances ? seconds(15) : seconds(6));
    take<hang_action::Ask>();
    wait(seconds(10));
    EXPECT_THAT(take<hang_action::Publish>().verdict.text,
                HasSubstr(advances ? "for 10 s" : "for 15 s"));
  }
}

TEST_F(HangWatchTest, AgeOfAnExitCounts) {
  step(hang_event::Finished{{.round = 1, .rank = 1, .limit = seconds(10), .age = seconds(7)}});
  const Instant begun = now_;
  wait(hours(1));
  EXPECT_EQ(now_ - begun, seconds(3));
  take<hang_action::Ask>();
  wait(seconds(10));
  EXPECT_THAT(take<hang_action::Publish>().verdict.text,
              HasSubstr("exited with 0, and 10 s later"));
}

TEST_F(HangWatchTest, GapOfTheProcessIsNotCountedForAPartialExit) {
  finish(1, seconds(10));
  now_ += seconds(60);
  step(hang_event::ClockGap{seconds(60)});
  step(hang_event::Tick{});
  EXPECT_TRUE(answers_.empty());
  const Instant begun = now_;
  wait(hours(1));
  EXPECT_EQ(now_ - begun, seconds(10));
}

TEST_F(HangWatchTest, StacksOfAnObserverServeAPartialExit) {
  finish(1, seconds(1));
  wait(milliseconds(500));
  step(hang_event::Requested{7});
  const auto asked = take<hang_action::Ask>();
  wait(milliseconds(500));
  step(hang_event::Tick{});
  EXPECT_TRUE(answers_.empty()) << "the stacks are requested once";
  reply(0, {waiting({0})}, asked.wanted.request);
  reply(1, {waiting({2, 3})}, asked.wanted.request);
  EXPECT_EQ(take<hang_action::Reply>().observer, 7U);
  take<hang_action::Publish>();
  take<hang_action::Close>();
}

TEST_F(HangWatchTest, HangThatIsBeingReportedComesBeforeThePartialExit) {
  report(0, 3, seconds(5));
  finish(2, seconds(6));
  wait(hours(1));
  const auto hang = take<hang_action::Ask>();
  wait(seconds(1));
  reply(0, {waiting({0, 1})}, hang.wanted.request);
  reply(1, {waiting({3})}, hang.wanted.request);
  EXPECT_THAT(take<hang_action::Publish>().verdict.text, HasSubstr("the job hangs"));
  wait(hours(1));
  const auto asked = take<hang_action::Ask>();
  reply(0, {waiting({0, 1})}, asked.wanted.request);
  reply(1, {waiting({3})}, asked.wanted.request);
  take<hang_action::Publish>();
  EXPECT_EQ(take<hang_action::Close>().result.exit_code, kExitPartial);
}

TEST_F(HangWatchTest, ThePaceIsThatOfTheLatestSteps) {
  EXPECT_EQ(watch_.pace(), std::nullopt);
  report(0, 10);
  EXPECT_EQ(watch_.pace(), (hang::Pace{.newest = 10, .oldest = 10, .ranks = 2, .step_time = {}}));
  for (std::int64_t i = 1; i <= 100; ++i) {
    wait(seconds(1));
    report(0, 10 + i / 2);  // some reports have no new step
    report(1, 9 + i / 2);
  }
  EXPECT_EQ(watch_.pace(),
            (hang::Pace{.newest = 60, .oldest = 59, .ranks = 4, .step_time = seconds(2)}));
  for (std::int64_t i = 1; i <= 20; ++i) {
    wait(seconds(1));
    report(0, 60 + 4 * i);
    report(1, 59 + 4 * i);
  }
  EXPECT_EQ(watch_.pace()->step_time, milliseconds(250)) << "earlier steps count no more";
  EXPECT_TRUE(answers_.empty());
  step(hang_event::Began{node(0), 2});
  EXPECT_EQ(watch_.pace(), std::nullopt) << "the next round has no steps yet";
}

}  // namespace
}  // namespace elastic::core
