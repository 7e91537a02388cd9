// Who is named when ranks wait in collective operations: the situations of a job with torch.

#include "core/hang/collective_verdict.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/hang/collective_text.h"
#include "core/hang/signature.h"

namespace elastic::core {
namespace {

using namespace std::chrono_literals;
using hang::CollectiveState;

constexpr std::int64_t kNow = 1'700'000'100'000'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;

// A line as a worker publishes it; open 0: nothing is open.
std::string line(const std::string& group, std::uint64_t last, std::uint64_t open,
                 const std::string& operation = "all_reduce", const std::string& sizes = "[[4]]",
                 std::int64_t age_s = 14) {
  return group + "\t" + (group == "0" ? "default_pg" : "undefined") + "\t" + std::to_string(last) +
         "\t" + std::to_string(open) + "\t" + std::to_string(kNow - age_s * kSecond) + "\t" +
         operation + "\t" + sizes + "\n";
}

struct Rank {
  std::string collectives;
  std::string groups = "";
};

// Rank i has the i-th lines.
CollectiveVerdict judge(const std::vector<Rank>& ranks) {
  std::vector<WorkerEvidence> workers;
  std::vector<hang::StackGroup> places;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<std::int32_t>(i);
    workers.push_back(
        {.rank = rank, .collectives = ranks[i].collectives, .groups = ranks[i].groups});
    hang::StackGroup place;
    place.ranks = {rank};
    place.label = "in f (train.py:" + std::to_string(i) + ")";
    places.push_back(place);
  }
  return judge_collectives(collective_states(workers, kNow), places);
}

TEST(CollectiveVerdict, NamesTheRankThatHasNotEntered) {
  const Rank waits{line("0", 4, 4)};
  const Rank late{line("0", 3, 0)};
  const auto two = judge({waits, late});
  EXPECT_EQ(two.suspect, 1);
  EXPECT_EQ(two.text,
            "rank 1 has not entered all_reduce #4 of the default group, for which 1 rank waits "
            "since 14 s; it is in f (train.py:1)");
  const auto four = judge({waits, waits, waits, late});
  EXPECT_EQ(four.suspect, 3);
  EXPECT_NE(four.text.find("for which 3 ranks wait since 14 s"), std::string::npos) << four.text;
  const auto several = judge({waits, late, late, waits});
  EXPECT_EQ(several.suspect, -1);
  EXPECT_NE(several.text.find("2 ranks (1-2) have not entered all_reduce #4"), std::string::npos)
      << several.text;
}

TEST(CollectiveVerdict, NamesNobodyWhereNobodyWaits) {
  EXPECT_EQ(judge({{line("0", 4, 0)}, {line("0", 3, 0)}}).text, "");
  EXPECT_EQ(judge({{""}, {""}}).text, "");
  EXPECT_EQ(judge({}).text, "");
}

// Several operations of one rank are open: the first one counts.
TEST(CollectiveVerdict, CountsFromTheFirstOpenOperation) {
  const auto found = judge({{line("0", 6, 4)}, {line("0", 3, 0)}});
  EXPECT_NE(found.text.find("has not entered all_reduce #4"), std::string::npos) << found.text;
}

// Ranks 0 and 1 wait for 2 and 3 in the default group, 2 waits for 3 in a group of their own.
TEST(CollectiveVerdict, FollowsTheWaitsToTheirRoot) {
  const std::string groups = "0\t0-3\n1\t0-1\n2\t2-3\n";
  const auto found = judge({{line("0", 4, 4, "barrier") + line("1", 1, 0), groups},
                            {line("0", 4, 4, "barrier") + line("1", 1, 0), groups},
                            {line("0", 3, 0) + line("2", 2, 2), groups},
                            {line("0", 3, 0) + line("2", 1, 0), groups}});
  EXPECT_EQ(found.suspect, 3);
  EXPECT_NE(found.text.find("rank 3 has not entered"), std::string::npos) << found.text;
}

TEST(CollectiveVerdict, SaysThatOperationsAreInDifferentOrders) {
  const std::string groups = "1\t0-1\n2\t0-1\n";
  const auto found = judge({{line("1", 1, 1), groups}, {line("2", 1, 1), groups}});
  EXPECT_EQ(found.suspect, -1);
  EXPECT_EQ(found.text,
            "rank 0 waits in all_reduce #1 of group 1 for rank 1, which waits in all_reduce #1 of "
            "group 2 for rank 0: the ranks call operations in different orders");
}

TEST(CollectiveVerdict, NamesTheMinorityOfDifferentOperations) {
  const Rank barrier{line("0", 4, 4, "barrier", "[]")};
  const Rank reduce{line("0", 4, 4)};
  const auto two = judge({barrier, reduce});
  EXPECT_EQ(two.suspect, -1) << "of two ranks, each may be the one that is wrong";
  EXPECT_EQ(two.text,
            "rank 1 called all_reduce of [[4]] as #4 of the default group, and rank 0 barrier");
  const auto three = judge({barrier, reduce, barrier});
  EXPECT_EQ(three.suspect, 1);
  EXPECT_NE(three.text.find("rank 1 called all_reduce of [[4]] as #4 of the default group, and 2 "
                            "ranks (0,2) barrier"),
            std::string::npos)
      << three.text;
}

// Three ranks in operation #4, of these sizes; "": the text of a verdict without a difference.
std::string of_sizes(const std::string& operation, const std::string& one,
                     const std::string& other) {
  const Rank usual{line("0", 4, 4, operation, one)};
  const auto found = judge({usual, {line("0", 4, 4, operation, other)}, usual});
  EXPECT_EQ(found.suspect, found.text.starts_with("rank 1 called ") ? 1 : -1);
  return found.text.starts_with("all 3 ranks have entered ") ? "" : found.text;
}

TEST(CollectiveVerdict, NamesTheMinorityOfDifferentSizesOrTypes) {
  const auto text = [](const std::string& wrong, const std::string& right) {
    return "rank 1 called " + wrong + " as #4 of the default group, and 2 ranks (0,2) " + right;
  };
  struct Row {
    std::string operation, one, other, wrong, right;
  };
  const std::vector<Row> rows = {
      {"all_reduce", "[[4]] Float", "[[1024]] Float", "of [[1024]]", "of [[4]]"},
      {"all_reduce", "[[4]] Float", "[[4]] Double", "of [[4]] Double", "of [[4]] Float"},
      {"all_reduce", "[[4]] Float", "[[2,2]] Double", "of [[2,2]] Double", "of [[4]] Float"},
      {"all_reduce", "[[4]] Float", "[[0]] Float", "of [[0]]", "of [[4]]"},
      {"broadcast", "[[4]] Float", "[[8]] Float", "of [[8]]", "of [[4]]"},
      {"reduce", "[[4]] Float", "[[8]] Float", "of [[8]]", "of [[4]]"},
      {"all_gather", "12 elements Float", "24 elements Float", "of 24 elements", "of 12 elements"},
      {"_all_gather_base", "12 elements Byte", "12 elements Float", "of 12 elements Float",
       "of 12 elements Byte"},
      {"reduce_scatter", "12 elements Float", "[[24]] Float", "of [[24]]", "of 12 elements"},
      {"_reduce_scatter_base", "[[12]] Float", "[[24]] Float", "of [[24]]", "of [[12]]"},
      {"allreduce_coalesced", "12 elements Float", "9 elements Float", "of 9 elements",
       "of 12 elements"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(of_sizes(row.operation, row.one, row.other),
              text(row.operation + " " + row.wrong, row.operation + " " + row.right));
  }
}

TEST(CollectiveVerdict, NamesNobodyWhereSizesMayDiffer) {
  struct Row {
    std::string operation, one, other;
  };
  const std::vector<Row> rows = {
      {"all_reduce", "[[4]] Float", "[[2,2]] Float"},
      {"all_reduce", "[[]] Float", "[[1]] Float"},
      {"reduce_scatter", "12 elements Float", "[[12]] Float"},
      {"all_to_all", "[[4]] Float", "[[8]] Float"},
      {"alltoall_base", "[[4]] Float", "[[8]] Float"},
      {"scatter", "[[4],[4],[4]]", "[]"},
      {"gather", "[[4]]", "[[8]]"},
      {"broadcast", "[[4],[4]]", "[[4],[8]]"},
      {"all_reduce", "[[4]]", "[[8]]"},  // of a worker that shows no types
      {"all_reduce", "[[4]] Float", "[[8]]"},
      {"all_reduce", "[[4]] Float", "[[1,1,1,1,1,1"},
      {"all_reduce", "[[4]] Float", "x elements Float"},
      {"all_reduce", "[[4]] Float", "[[x]] Float"},
      {"barrier", "[]", "[[1]]"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(of_sizes(row.operation, row.one, row.other), "") << row.operation << row.other;
  }
}

// A tensor without elements needs no other rank.
TEST(CollectiveVerdict, ComparesWithRanksOnWhichTheOperationIsOver) {
  const Rank waits{line("0", 4, 4, "all_reduce", "[[4]] Float")};
  EXPECT_EQ(judge({waits, {line("0", 4, 0, "all_reduce", "[[0]] Float")}, waits}).text,
            "rank 1 called all_reduce of [[0]] as #4 of the default group, and 2 ranks (0,2) "
            "all_reduce of [[4]]");
  const auto same = judge({waits, {line("0", 4, 0, "all_reduce", "[[4]] Float")}, waits});
  EXPECT_EQ(same.text,
            "2 ranks (0,2) wait in all_reduce #4 of the default group, which is over on rank 1: "
            "the sizes differ, or a connection has failed");
  EXPECT_EQ(same.suspect, -1);
  EXPECT_EQ(judge({waits, {line("0", 5, 5, "barrier", "[]")}, waits}).text, same.text);
  EXPECT_EQ(judge({waits, {line("0", 4, 0, "barrier", "[]")}, waits}).text, same.text)
      << "another version of the worker's library";
}

// Rank 0 receives from a rank, which is not known.
TEST(CollectiveVerdict, TheRankThatDoesNotWaitElsewhereIsTheCause) {
  CollectiveJudge judge;
  judge.add({.ranks = "1,3", .group = "0", .last = 4, .open = 4, .operation = "all_reduce"});
  judge.add({.ranks = "0,2", .group = "0", .last = 3});
  using Kind = hang::StackGroup::Kind;
  const auto found = judge.verdict(
      {{.ranks = {0}, .kind = Kind::kWaiting, .label = "in recv (train.py:7)", .text = ""},
       {.ranks = {1, 3}, .kind = Kind::kWaiting, .label = "in all_reduce", .text = ""},
       {.ranks = {2}, .kind = Kind::kAtWork, .label = "in read (data.py:4)", .text = ""}});
  EXPECT_EQ(found.suspect, 2);
  EXPECT_EQ(found.place, "in read (data.py:4)");
  EXPECT_NE(found.text.find("2 ranks (0,2) have not entered all_reduce #4"), std::string::npos);
  EXPECT_TRUE(
      found.text.ends_with("; rank 0 is in recv (train.py:7); rank 2 is in read (data.py:4)"))
      << found.text;
}

TEST(CollectiveVerdict, SaysThatOperationsAreNotSeen) {
  const auto blindness = [](const std::string& why) {
    return judge({{"\t\t0\t0\t0\t" + why + "\t\n"}, {"\t\t0\t0\t0\t" + why + "\t\n"}}).blindness;
  };
  EXPECT_EQ(blindness(hang::kRecorderOff),
            "the collective operations of 2 ranks (0-1) are not seen: torch's flight recorder is "
            "off (TORCH_FR_BUFFER_SIZE=0)");
  EXPECT_EQ(blindness(hang::kNoRecorder),
            "the collective operations of 2 ranks (0-1) are not seen: torch's flight recorder is "
            "not in this version of torch");
  const auto mixed = judge({{line("0", 4, 4)}, {"\t\t0\t0\t0\toff\t\n"}});
  EXPECT_NE(mixed.text.find("rank 1 is not seen in all_reduce #4"), std::string::npos);
  EXPECT_NE(mixed.blindness, "");
  EXPECT_EQ(judge({{line("0", 4, 4)}}).blindness, "");
}

TEST(CollectiveVerdict, SaysThatNothingCompletesWhatAllHaveEntered) {
  const Rank waits{line("0", 4, 4)};
  EXPECT_EQ(judge({waits, waits}).text,
            "all 2 ranks have entered all_reduce #4 of the default group, and none has completed "
            "it since 14 s: the network, or a device, does not");
}

// A rank that is stopped, or advances, publishes nothing.
TEST(CollectiveVerdict, NamesARankOfWhichNothingIsKnownLast) {
  const auto found = judge({{line("0", 4, 4)}, {""}});
  EXPECT_EQ(found.suspect, 1);
  EXPECT_NE(found.text.find("rank 1 is not seen in all_reduce #4"), std::string::npos)
      << found.text;
}

TEST(CollectiveStates, EqualWorkersShareOneState) {
  const auto states =
      collective_states({{.rank = 0, .collectives = line("0", 4, 4)},
                         {.rank = 2, .collectives = line("0", 4, 4, "all_reduce", "[[4]]", 20)},
                         {.rank = 1, .collectives = line("0", 3, 0)}},
                        kNow);
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].ranks, "1");
  EXPECT_EQ(states[1].ranks, "0,2");
  EXPECT_EQ(states[1].waiting, 20s);
  EXPECT_EQ(states[1].operation, "all_reduce");
}

TEST(CollectiveStates, RanksThatDoNotFitAreLeftOut) {
  std::vector<WorkerEvidence> workers;
  for (std::int32_t i = 0; i < 300; ++i) {
    workers.push_back({.rank = i * i, .collectives = line("0", 4, 4)});
  }
  const auto states = collective_states(workers, kNow);
  ASSERT_EQ(states.size(), 1U);
  EXPECT_LE(states[0].ranks.size(), hang::kRanksTextMax);
  EXPECT_GT(states[0].ranks.size(), hang::kRanksTextMax - 6);
  EXPECT_TRUE(states[0].ranks.starts_with("0-1,4,9,"));
  EXPECT_NE(states[0].ranks.back(), ',');
}

TEST(CollectiveStates, RanksAreWrittenAsTheyAreRead) {
  const std::vector<std::pair<std::vector<std::int32_t>, std::string>> texts = {
      {{}, ""},
      {{7}, "7"},
      {{0, 1, 2, 3, 8}, "0-3,8"},
      {{0, 8, 16}, "0,8,16"},
      {{0, 8, 16, 24}, "0-24/8"},
      {{3, 4, 16, 32, 48, 64, 65}, "3-4,16-64/16,65"},
  };
  for (const auto& [ranks, text] : texts) {
    EXPECT_EQ(list_ranks(ranks), text);
    EXPECT_EQ(ranks_in(text), ranks);
  }
  std::mt19937 random(1);
  for (int turn = 0; turn < 1000; ++turn) {
    std::vector<std::int32_t> ranks;
    std::int32_t rank = 0;
    const auto largest = 1 + random() % 4;
    for (auto count = random() % 40; count > 0; --count) {
      ranks.push_back(rank += static_cast<std::int32_t>(1 + random() % largest));
    }
    EXPECT_EQ(ranks_in(list_ranks(ranks)), ranks) << list_ranks(ranks);
  }
}

// One group of 512 ranks in a job of 4096, in which rank 8 is stopped and publishes nothing.
TEST(CollectiveVerdict, NamesASilentRankOfALargeGroupWithGaps) {
  std::vector<std::int32_t> members;
  for (std::int32_t rank = 0; rank < 4096; rank += 8) members.push_back(rank);
  CollectiveState state{.group = "3", .description = "dp0"};
  state.last = state.open = 4;
  state.operation = "all_reduce";
  state.waiting = 14s;
  state.members = list_ranks(members);
  members.erase(members.begin() + 1);
  state.ranks = list_ranks(members);
  EXPECT_EQ(judge_collectives({state}, {}).suspect, 8);
  state.members = "";  // too long for a message
  EXPECT_EQ(judge_collectives({state}, {}).text, "") << "rank 8 may be why none completes it";
}

// A worker writes what it wants.
TEST(CollectiveStates, LinesThatCannotBeReadAreSkipped) {
  const std::vector<std::string> lines = {
      "",
      "\n\n\n",
      "0",
      "0\tdefault_pg\t4\t5\t1\tall_reduce\t[]\n",  // more open than entered
      "0\tdefault_pg\t-4\t0\t1\tall_reduce\t[]\n",
      "0\tdefault_pg\tx\t0\t1\tall_reduce\t[]\n",
      "\tdefault_pg\t4\t4\t1\tall_reduce\t[]\n",
      "0\tdefault_pg\t99999999999999999999999\t0\t1\tall_reduce\t[]\n",
  };
  for (const std::string& one : lines) {
    EXPECT_TRUE(collective_states({{.rank = 0, .collectives = one}}, kNow).empty()) << one;
  }
  std::string many;
  for (int i = 0; i < 1000; ++i) many += line(std::to_string(i), 4, 4);
  EXPECT_EQ(collective_states({{.rank = 0, .collectives = many}}, kNow).size(),
            hang::kCollectivesMax);
  const auto odd = collective_states(
      {{.rank = 0, .collectives = line("0\x1b[2J", 4, 4), .groups = "0\t0-2147483647\n"}}, kNow);
  ASSERT_EQ(odd.size(), 1U);
  EXPECT_EQ(odd[0].group, "0\uFFFD[2J");
}

TEST(CollectiveVerdict, ReadsNoRanksFromATextThatIsNone) {
  for (const std::string text : {"0-2147483647", "3-1", "-1", "a", "1,,2", "0-", "5-5-5", "0-8/0",
                                 "0-8/-1", "0-8/", "0-8/x", "8-0/2"}) {
    CollectiveState state;
    state.ranks = "0";
    state.group = "0";
    state.members = text;
    state.last = state.open = 4;
    state.operation = "barrier";
    EXPECT_EQ(judge_collectives({state}, {}).suspect, -1) << text;
    state.ranks = text;
    EXPECT_EQ(judge_collectives({state}, {}).text, "") << text;
  }
}

// One rank of 32,768 is late.
TEST(CollectiveVerdict, OneLateRankAmongThousandsOfNodesIsFound) {
  constexpr int kNodes = 4096;
  std::vector<CollectiveState> states;
  std::vector<hang::StackGroup> places;
  for (int node = 0; node < kNodes; ++node) {
    CollectiveState state;
    state.group = "0";
    state.description = "default_pg";
    state.members = "0-32767";
    state.ranks = std::to_string(8 * node) + "-" + std::to_string(8 * node + 7);
    state.last = state.open = node == 77 ? 3 : 4;
    if (node == 77) state.open = 0;
    state.operation = node == 77 ? "" : "all_reduce";
    state.waiting = 14s;
    states.push_back(state);
  }
  const auto found = judge_collectives(states, places);
  EXPECT_NE(found.text.find("8 ranks (616-623) have not entered all_reduce #4 of the default "
                            "group, for which 32760 ranks wait since 14 s"),
            std::string::npos)
      << found.text;
}

}  // namespace
}  // namespace elastic::core
