// From which replicated snapshots a round continues, and which node sends them to which.

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "core/snapshot/snapshot_plan.h"

namespace elastic::snapshot {
namespace {

// "0/4:5@1" is what rank 0 of 4 has saved after step 5 in round 1. A letter behind it: "c" a copy,
// "p" saved without replicated=True. "x5": the node could not get step 5; "kept": its workers keep
// their processes.
std::vector<HeldState> parse_states(const std::string& text) {
  std::vector<HeldState> held;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    HeldState one{.is_replicated = true};
    if (word == "kept") {
      one = kKeepsProcesses;
    } else if (word.front() == 'x') {
      one = {.rank = -1, .step = std::stoll(word.substr(1))};
    } else {
      char slash = 0, colon = 0, at = 0, letter = 0;
      std::istringstream(word) >> one.rank >> slash >> one.world_size >> colon >> one.step >> at >>
          one.round >> letter;
      one.is_copy = letter == 'c';
      one.is_replicated = letter != 'p';
    }
    held.push_back(one);
  }
  return held;
}

// "5@1 replicated <- 0/4 node0, 0/4 own": of which rank each node gets it, and from where.
std::string plan_text(const std::vector<const char*>& texts, int ranks, bool is_served) {
  std::vector<std::vector<HeldState>> held;
  std::vector<std::string> addresses;
  for (const char* text : texts) {
    held.push_back(parse_states(text));
    addresses.push_back(is_served ? "node" + std::to_string(addresses.size()) : "");
  }
  std::vector<NodeHoldings> nodes;
  for (std::size_t i = 0; i < held.size(); ++i) {
    nodes.push_back({static_cast<int>(i) * ranks, ranks, &held[i], &addresses[i]});
  }
  const int world_size = ranks * static_cast<int>(nodes.size());
  const ResumePoint point = plan_resume(nodes, world_size);
  const char* const kinds[] = {"own", "replicated", "mixed"};
  const std::string kind = kinds[static_cast<int>(point.kind)];
  std::string text =
      point.step < 0 ? "none " + kind
                     : std::to_string(point.step) + "@" + std::to_string(point.round) + " " + kind;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (point.step < 0) break;
    text += i == 0 ? " <-" : ",";
    for (const HeldSource& one : plan_sources(nodes, world_size, point, i)) {
      EXPECT_EQ(one.is_shared, point.kind == ResumeKind::kReplicated);
      EXPECT_EQ(one.round, point.round);
      text += " " + std::to_string(one.rank);
      if (one.is_shared) text += "/" + std::to_string(one.world_size);
      text += one.address.empty() ? " own" : " " + one.address;
    }
  }
  return text;
}

struct ReplicatedCase {
  const char* what;
  std::vector<const char*> nodes;
  int ranks;  // of a node
  const char* expected;
  const char* without_copies;  // no node sends any
};

TEST(ReplicatedPlan, IsTheNewestSaveOfAnyRankThatEveryNodeCanGet) {
  const ReplicatedCase cases[] = {
      {"one node is left of two: 2 x 2 -> 1 x 2",
       {"0/4:5@1 0/4:6@1 1/4:5@1 1/4:6@1"},
       2,
       "6@1 replicated <- 0/4 own",
       "6@1 replicated <- 0/4 own"},
      {"a node joins",
       {"0/1:5@1 0/1:6@1", ""},
       1,
       "6@1 replicated <- 0/1 own, 0/1 node0",
       "none own"},
      {"a node is replaced: what is newer than the copies is not lost",
       {"0/2:8@1 0/2:9@1 1/2:4@1c", ""},
       1,
       "9@1 replicated <- 0/2 own, 0/2 node0",
       "none own"},
      {"a worker was killed while it wrote step 6",
       {"0/2:5@1 0/2:6@1 1/2:5@1"},
       2,
       "6@1 replicated <- 0/2 own",
       "6@1 replicated <- 0/2 own"},
      {"the same size, and all have it",
       {"0/2:5@1 0/2:6@1", "1/2:5@1 1/2:6@1"},
       1,
       "6@1 own <-,",
       "6@1 own <-,"},
      {"the nodes have changed places",
       {"1/2:6@1", "0/2:6@1"},
       1,
       "6@1 replicated <- 1/2 own, 0/2 own",
       "6@1 replicated <- 1/2 own, 0/2 own"},
      {"the copy on this node is enough",
       {"0/2:6@1c", "1/2:5@1"},
       1,
       "6@1 replicated <- 0/2 node0, 0/2 node0",
       "none own"},
      {"two nodes send it to two that join",
       {"0/2:6@1", "1/2:6@1", "", ""},
       1,
       "6@1 replicated <- 0/2 own, 1/2 own, 0/2 node0, 0/2 node0",
       "none own"},
      {"a node that was away has an older save of the same step",
       {"0/2:6@3", "1/2:6@1"},
       1,
       "6@3 replicated <- 0/2 own, 0/2 node0",
       "none own"},
      {"a node could not get the step",
       {"0/2:5@1 0/2:6@1", "x6"},
       1,
       "5@1 replicated <- 0/2 own, 0/2 node0",
       "none own"},
      {"the size changed twice",
       {"0/4:7@2 0/4:6@1", "0/2:6@1"},
       1,
       "7@2 replicated <- 0/4 own, 0/4 node0",
       "6@1 replicated <- 0/4 own, 0/2 own"},
      {"workers keep their processes, and with them their state",
       {"kept", "0/2:9@1"},
       1,
       "none own",
       "none own"},
      {"ranks differ: each continues from its own, with the same size",
       {"0/2:5@1 0/2:6@1 1/2:5@1p"},
       2,
       "5@1 own <-",
       "5@1 own <-"},
      {"ranks differ, and the size has changed",
       {"0/4:6@1 1/4:6@1p"},
       2,
       "none mixed",
       "none mixed"},
      {"ranks differed only in the round before",
       {"0/4:6@1 1/4:6@1p 0/4:7@2"},
       2,
       "7@2 replicated <- 0/4 own",
       "7@2 replicated <- 0/4 own"},
  };
  for (const ReplicatedCase& one : cases) {
    EXPECT_EQ(plan_text(one.nodes, one.ranks, true), one.expected) << one.what;
    EXPECT_EQ(plan_text(one.nodes, one.ranks, false), one.without_copies)
        << one.what << ", and no node sends any";
  }
}

TEST(ReplicatedPlan, SaysWhyThereIsNone) {
  EXPECT_EQ(
      describe_plan({.kind = ResumeKind::kMixed}, 9, parse_states("0/4:6@1 1/4:6@1p"), 2, 0, 2),
      "the snapshots in memory are not used (ranks have saved with and without "
      "replicated=True, which all must pass or none): every rank restores its own "
      "checkpoint");
  EXPECT_EQ(describe_plan({}, 9, parse_states("0/4:6@1"), 2, 0, 2),
            "the snapshots in memory are not used (a node cannot get the replicated state): every "
            "rank restores its own checkpoint");
}

}  // namespace
}  // namespace elastic::snapshot
