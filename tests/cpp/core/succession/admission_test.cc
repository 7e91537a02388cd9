// What a process answers to the first message of a session: the table, what it means for a job that
// has moved or was lost, and how long that is known.

#include "core/succession/admission.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace elastic::succession {
namespace {

using namespace std::chrono_literals;
using Call = Admission::Call;
using Here = Admission::Here;

constexpr Instant kStart{1h};

Incumbent elected_in(std::uint64_t lineage, std::uint64_t term) {
  return {.lineage = {lineage, 0},
          .term = term,
          .node = {lineage, term},
          .address = "10.0.0." + std::to_string(lineage) + ":29400",
          .voters = {}};
}

Reaction reaction(Admission* all, const Call& call, Instant now) {
  return all->answer(call, std::nullopt, now).reaction;
}

// Where observers of the job are sent; "": nowhere.
std::string place_of(Admission* all, const std::string& job, Instant now) {
  const auto answer = all->answer({.job = job, .from = Call::From::kObserver}, std::nullopt, now);
  return answer.reaction == Reaction::kSend ? answer.incumbent.address : "";
}

std::string table_text() {
  constexpr std::array<std::string_view, kStandings> kNames = {"unknown",
                                                               "unknown, at a standby",
                                                               "lost here",
                                                               "coordinated elsewhere",
                                                               "elsewhere, address unknown",
                                                               "here, no node yet",
                                                               "here, one voter",
                                                               "here, several voters",
                                                               "here, kept by a store",
                                                               "here, ended"};
  constexpr std::array<std::string_view, kReactions> kTexts = {
      "enter", "begin", "send there", "search on", "observe", "unknown",
      "note",  "keep",  "meet",       "give way",  "compare"};
  std::string text =
      "| the job is | newcomer | member | stranger | observer | coordinator |\n"
      "|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < kStandings; ++i) {
    text += "| " + std::string(kNames.at(i)) + " |";
    for (std::size_t caller = 0; caller < kCallers; ++caller) {
      const Reaction one = reaction_to(static_cast<Standing>(i), static_cast<Caller>(caller));
      text += " " + std::string(kTexts.at(static_cast<std::size_t>(one))) + " |";
    }
    text += "\n";
  }
  return text;
}

TEST(Admission, DocumentShowsTheTable) {
  std::ifstream file(ELASTIC_TEST_DOCS "rendezvous.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_TRUE(page.str().find(table_text()) != std::string::npos)
      << "put this into docs/rendezvous.md:\n"
      << table_text();
}

TEST(Admission, OnlyNodesOfAnotherJobAreTurnedAwayWhereTheJobIs) {
  for (std::size_t i = static_cast<std::size_t>(Standing::kEmpty); i < kStandings; ++i) {
    const auto standing = static_cast<Standing>(i);
    EXPECT_EQ(reaction_to(standing, Caller::kNewcomer), Reaction::kEnter);
    EXPECT_EQ(reaction_to(standing, Caller::kMember), Reaction::kEnter);
    EXPECT_EQ(reaction_to(standing, Caller::kStranger), Reaction::kSearch);
  }
}

TEST(Admission, ForgetsCoordinatorsThatAnnounceThemselvesNoMore) {
  Admission all;
  EXPECT_EQ(place_of(&all, "job", kStart), "");
  all.note("job", elected_in(1, 2), kStart);
  EXPECT_EQ(place_of(&all, "job", kStart + 1s), "10.0.0.1:29400");
  EXPECT_EQ(place_of(&all, "", kStart + 1s), "10.0.0.1:29400");
  EXPECT_EQ(place_of(&all, "other", kStart + 1s), "");
  all.note("job", elected_in(1, 2), kStart + kAnnounceInterval);
  EXPECT_NE(place_of(&all, "job", kStart + kAnnouncedFor), "");
  EXPECT_EQ(place_of(&all, "job", kStart + kAnnouncedFor + kAnnounceInterval), "");
  all.note("job", elected_in(1, 2), kStart + 60s);
  all.note("other", elected_in(2, 2), kStart + 60s);
  EXPECT_EQ(place_of(&all, "", kStart + 60s), "") << "an empty id selects the only job";
}

TEST(Admission, TheCoordinatorThatContinuesIsKept) {
  Admission all;
  const auto add = [&](const Incumbent& one, Instant now) {
    const auto answer = all.answer(
        {.job = "job", .from = Call::From::kCoordinator, .announced = one}, std::nullopt, now);
    EXPECT_EQ(answer.reaction, Reaction::kNote);
    return answer.incumbent;
  };
  add(elected_in(2, 2), kStart);
  EXPECT_EQ(add(elected_in(3, 2), kStart), elected_in(2, 2));
  EXPECT_EQ(add(elected_in(2, 1), kStart), elected_in(2, 2)) << "a former term";
  EXPECT_EQ(add(elected_in(2, 3), kStart), elected_in(2, 3));
  EXPECT_EQ(add(elected_in(1, 3), kStart), elected_in(1, 3));
  // The one that is refused does not prolong the entry of the other one.
  EXPECT_EQ(add(elected_in(2, 3), kStart + kAnnouncedFor), elected_in(2, 3));
}

TEST(Admission, DecidesWhereANodeGoes) {
  const reg::LineageId former{1, 0};
  const reg::LineageId other{9, 0};
  const std::optional<Here> elsewhere;
  const std::optional<Here> here = Here{Standing::kReplicated, elected_in(1, 2)};
  const std::optional<Here> alone = Here{Standing::kRunning};
  const auto nothing = [](Admission&) {};
  const auto expired = [](Admission& all) { all.lost("job", {}, kStart); };
  const auto moved = [](Admission& all) { all.lost("job", elected_in(1, 2), kStart); };
  struct Case {
    std::string name;
    std::string own;
    std::function<void(Admission&)> before;
    std::optional<reg::LineageId> node;
    std::optional<Here> here;
    Duration later;
    Reaction expected;
  };
  const std::vector<Case> cases = {
      {"a new job", "", nothing, {}, elsewhere, 0s, Reaction::kBegin},
      {"a node of a job with voters", "", nothing, former, elsewhere, 0s, Reaction::kSearch},
      {"the job of this process", "", nothing, {}, here, 0s, Reaction::kEnter},
      {"a node of its lineage", "", nothing, former, here, 0s, Reaction::kEnter},
      {"a node of another lineage", "", nothing, other, here, 0s, Reaction::kSearch},
      {"a node of voters, a job without", "", nothing, other, alone, 0s, Reaction::kSearch},
      {"lost, a newcomer", "", expired, {}, elsewhere, 1ms, Reaction::kBegin},
      {"lost, a node of it", "", expired, former, elsewhere, 1ms, Reaction::kSearch},
      {"lost, long ago", "", expired, former, elsewhere, 1h, Reaction::kSearch},
      {"moved, a newcomer", "", moved, {}, elsewhere, 1s, Reaction::kSend},
      {"moved, a node of it", "", moved, former, elsewhere, 1s, Reaction::kSend},
      {"moved, a node of another one", "", moved, other, elsewhere, 1s, Reaction::kSearch},
      {"moved, the successor is gone", "", moved, {}, elsewhere, kAnnouncedFor, Reaction::kBegin},
      {"the same, a node of it", "", moved, former, elsewhere, kAnnouncedFor, Reaction::kSearch},
      {"a guest's job moved", "own", moved, {}, elsewhere, kAnnouncedFor, Reaction::kBegin},
      {"the own job moved", "job", moved, {}, elsewhere, 1h, Reaction::kSend},
      {"the own job is lost", "job", expired, {}, elsewhere, 1h, Reaction::kSearch},
      {"the same, a node of it", "job", expired, former, elsewhere, 1h, Reaction::kSearch},
  };
  for (const Case& one : cases) {
    Admission all(one.own);
    one.before(all);
    const Call call{.job = "job", .lineage = one.node};
    const auto answer = all.answer(call, one.here, kStart + one.later);
    EXPECT_EQ(answer.reaction, one.expected) << one.name;
    if (answer.reaction == Reaction::kSend) {
      EXPECT_EQ(answer.incumbent, elected_in(1, 2)) << one.name;
    }
    if (answer.reaction == Reaction::kSearch) {
      EXPECT_EQ(answer.incumbent, Incumbent{}) << one.name;
    }
  }
}

TEST(Admission, AStandbyBeginsNoJob) {
  Admission all("job", true);
  EXPECT_EQ(reaction(&all, {.job = "job"}, kStart), Reaction::kSearch);
  EXPECT_EQ(reaction(&all, {.job = "other"}, kStart), Reaction::kSearch);
  all.set_own(elected_in(1, 2));
  EXPECT_EQ(reaction(&all, {.job = "job"}, kStart + 1h), Reaction::kSend);
  EXPECT_EQ(reaction(&all, {.job = "other"}, kStart + 1h), Reaction::kSearch);
}

// The agent knows where its own job is; a coordinator of another lineage that announces itself at
// this process does not take its nodes.
TEST(Admission, TheNodesOfTheOwnJobGoWhereItsAgentGoes) {
  Admission all("job");
  all.set_own(elected_in(1, 2));
  all.note("job", elected_in(5, 3), kStart);
  const auto answer =
      all.answer({.job = "job", .lineage = reg::LineageId{1, 0}}, std::nullopt, kStart);
  EXPECT_EQ(answer.reaction, Reaction::kSend);
  EXPECT_EQ(answer.incumbent, elected_in(1, 2));
}

TEST(Admission, AnElectedCoordinatorLearnsWhoCoordinatesHere) {
  const Incumbent ours = elected_in(2, 2);
  const auto announce = [&](Standing standing, const std::optional<Incumbent>& here,
                            const Incumbent& theirs) {
    Admission all;
    return all.answer({.job = "job", .from = Call::From::kCoordinator, .announced = theirs},
                      Here{standing, here}, kStart);
  };
  EXPECT_EQ(announce(Standing::kEmpty, {}, elected_in(9, 2)).reaction, Reaction::kGiveWay);
  EXPECT_EQ(announce(Standing::kEmpty, ours, elected_in(9, 2)).incumbent, ours);
  EXPECT_EQ(announce(Standing::kRunning, {}, elected_in(9, 2)).reaction, Reaction::kGiveWay);
  EXPECT_EQ(announce(Standing::kRunning, ours, elected_in(1, 2)).reaction, Reaction::kGiveWay);
  EXPECT_EQ(announce(Standing::kRunning, ours, elected_in(9, 2)).reaction, Reaction::kKeep);
  EXPECT_EQ(announce(Standing::kReplicated, ours, elected_in(9, 2)).reaction, Reaction::kMeet);
  EXPECT_EQ(announce(Standing::kStored, ours, elected_in(1, 9)).reaction, Reaction::kKeep);
  const auto over = announce(Standing::kOver, ours, elected_in(9, 2));
  EXPECT_EQ(over.reaction, Reaction::kNote);
  EXPECT_EQ(over.incumbent, elected_in(9, 2));
}

// The successor of a job that was lost here may be unknown yet.
TEST(Admission, TheNextJobOfAnIdWaitsForAnAnnouncement) {
  Admission all;
  const auto hold = [&](const std::string& job, Instant now) {
    const auto answer = all.answer({.job = job}, std::nullopt, now);
    EXPECT_EQ(answer.reaction, Reaction::kBegin);
    return answer.hold;
  };
  EXPECT_EQ(hold("job", kStart), 0s);
  all.lost("job", {}, kStart);
  EXPECT_GT(hold("job", kStart), kAnnounceInterval);
  EXPECT_EQ(hold("other", kStart), 0s);
  EXPECT_EQ(place_of(&all, "job", kStart), "");
  EXPECT_EQ(hold("job", kStart + 1h), 0s);
  all.lost("job", {}, kStart + 1h);
  all.note("job", elected_in(1, 2), kStart + 1h);
  EXPECT_EQ(reaction(&all, {.job = "job"}, kStart + 1h), Reaction::kSend);
}

}  // namespace
}  // namespace elastic::succession
