#include "core/gate/network_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/instant.h"

namespace elastic::gate {
namespace {

using std::chrono::microseconds;
using support::at;
using Kind = ProbeVerdict::Kind;

// A network: 10 GB/s and 20 us, give or take a fifth, but for what is broken.
struct Network {
  std::set<std::size_t> dead;
  std::set<std::size_t> slow;     // a third of the bandwidth
  std::set<std::size_t> distant;  // a hundred times the latency
  std::set<std::pair<std::size_t, std::size_t>> broken;
  std::mt19937 random = std::mt19937(7);

  ProbeMeasurement measure(const ProbePair& pair) {
    const std::size_t low = std::min(pair.first, pair.second);
    const std::size_t high = std::max(pair.first, pair.second);
    const auto is_one_of = [&](const std::set<std::size_t>& some) {
      return some.count(low) > 0 || some.count(high) > 0;
    };
    if (is_one_of(dead) || broken.count({low, high}) > 0) return {};
    std::uniform_real_distribution<double> noise(0.8, 1.2);
    const double bandwidth = 1e10 * noise(random) * (is_one_of(slow) ? 0.33 : 1);
    const double latency = 20 * noise(random) * (is_one_of(distant) ? 100 : 1);
    return {true, bandwidth, microseconds(static_cast<int>(latency))};
  }
};

struct Outcome {
  std::vector<ProbeVerdict> verdicts;
  int rounds = 0;
  Duration took{};
};

Outcome probe(std::size_t nodes, Network network) {
  NetworkProbe probe(nodes);
  Instant now = at(0);
  for (auto pairs = probe.begin(now); !pairs.empty(); pairs = probe.next_round(now)) {
    std::set<std::size_t> busy;
    for (const ProbePair& pair : pairs) {
      EXPECT_TRUE(busy.insert(pair.first).second && busy.insert(pair.second).second)
          << "a node measures with one other at a time";
      const ProbeMeasurement measured = network.measure(pair);
      if (measured.has_answered) probe.result(pair, measured);
    }
    if (const auto deadline = probe.next_deadline()) {
      now = *deadline;
      probe.tick(now);
    }
    EXPECT_TRUE(probe.is_due());
  }
  return {probe.verdicts(), probe.rounds(), now - at(0)};
}

using Verdicts = std::vector<ProbeVerdict>;

TEST(NetworkProbe, AGoodNetworkNeedsOneRoundWithoutAWait) {
  for (const std::size_t nodes : {2, 4, 16, 1024}) {
    const Outcome outcome = probe(nodes, {});
    EXPECT_TRUE(outcome.verdicts.empty()) << nodes;
    EXPECT_EQ(outcome.rounds, 1);
    EXPECT_EQ(outcome.took, Duration::zero());
  }
}

TEST(NetworkProbe, AnOddNodeIsMeasuredInTheSecondRound) {
  for (const std::size_t nodes : {5, 17}) {
    const Outcome outcome = probe(nodes, {});
    EXPECT_TRUE(outcome.verdicts.empty());
    EXPECT_EQ(outcome.rounds, 2);
  }
  EXPECT_EQ(probe(3, {}).rounds, 3) << "all pairs";
}

TEST(NetworkProbe, EachSingleFaultIsNamed) {
  for (std::size_t nodes = 3; nodes <= 17; ++nodes) {
    for (std::size_t node = 0; node < nodes; ++node) {
      SCOPED_TRACE(std::to_string(node) + " of " + std::to_string(nodes));
      EXPECT_EQ(probe(nodes, {.dead = {node}}).verdicts, (Verdicts{{Kind::kNode, node}}));
      EXPECT_EQ(probe(nodes, {.slow = {node}}).verdicts, (Verdicts{{Kind::kSlow, node}}));
      EXPECT_EQ(probe(nodes, {.distant = {node}}).verdicts, (Verdicts{{Kind::kSlow, node}}));
    }
  }
}

TEST(NetworkProbe, ALinkThatFailsAloneBlamesNoNode) {
  EXPECT_EQ(probe(16, {.broken = {{4, 5}}}).verdicts, (Verdicts{{Kind::kLink, 4, 5}}));
  EXPECT_TRUE(probe(16, {.broken = {{4, 9}}}).verdicts.empty()) << "it is not measured";
  // The odd node is measured once more with another partner.
  EXPECT_EQ(probe(5, {.broken = {{0, 4}}}).verdicts, (Verdicts{{Kind::kLink, 4, 0}}));
}

TEST(NetworkProbe, TwoBadNodesOfSixteenAreNamedWhereverTheyAre) {
  for (std::size_t a = 0; a < 16; ++a) {
    for (std::size_t b = a + 1; b < 16; ++b) {
      const Outcome outcome = probe(16, {.dead = {a, b}});
      EXPECT_EQ(outcome.verdicts, (Verdicts{{Kind::kNode, a}, {Kind::kNode, b}})) << a << ' ' << b;
      EXPECT_EQ(probe(16, {.dead = {a}, .slow = {b}}).verdicts.size(), 2U) << a << ' ' << b;
    }
  }
}

TEST(NetworkProbe, TheBadOneOfThreeNodesIsNamed) {
  for (std::size_t node = 0; node < 3; ++node) {
    EXPECT_EQ(probe(3, {.dead = {node}}).verdicts, (Verdicts{{Kind::kNode, node}})) << node;
  }
}

TEST(NetworkProbe, ABadNodeInEachOfTwoPairsIsNamed) {
  EXPECT_EQ(probe(4, {.dead = {0, 2}}).verdicts, (Verdicts{{Kind::kNode, 0}, {Kind::kNode, 2}}));
  EXPECT_EQ(probe(4, {.dead = {0, 3}}).verdicts, (Verdicts{{Kind::kNode, 0}, {Kind::kNode, 3}}));
}

TEST(NetworkProbe, TwoNodesCannotTellWhoseFaultItIs) {
  EXPECT_EQ(probe(2, {.dead = {0}}).verdicts, (Verdicts{{Kind::kNone, 0, 1}}));
  EXPECT_TRUE(probe(1, {}).verdicts.empty());
  EXPECT_TRUE(probe(0, {}).verdicts.empty());
}

TEST(NetworkProbe, ItTakesLessThanTenSecondsWhateverFails) {
  for (const std::size_t nodes : {2, 3, 5, 16, 33, 1000}) {
    for (std::size_t dead = 0; dead <= nodes; dead += 1 + nodes / 8) {
      Network network;
      for (std::size_t node = 0; node < dead; ++node) network.dead.insert(node);
      const Outcome outcome = probe(nodes, network);
      EXPECT_LT(outcome.took, std::chrono::seconds(10));
      for (const ProbeVerdict& verdict : outcome.verdicts) {
        const bool is_blamed = verdict.kind == Kind::kNode || verdict.kind == Kind::kSlow;
        EXPECT_TRUE(!is_blamed || network.dead.count(verdict.node) > 0) << "a good node is blamed";
      }
    }
  }
}

TEST(NetworkProbe, AFewBadNodesOfManyAreAllNamedAndNoGoodOne) {
  std::mt19937 random(11);
  for (int run = 0; run < 200; ++run) {
    const std::size_t nodes = 8 + random() % 60;
    Network network{.random = std::mt19937(random())};
    while (network.dead.size() + network.slow.size() < nodes / 8) {
      (random() % 2 == 0 ? network.dead : network.slow).insert(random() % nodes);
    }
    std::set<std::size_t> bad = network.dead;
    bad.insert(network.slow.begin(), network.slow.end());
    std::set<std::size_t> named;
    for (const ProbeVerdict& verdict : probe(nodes, network).verdicts) named.insert(verdict.node);
    EXPECT_EQ(named, bad) << run;
  }
}

// With all pairs at once a host, or a switch, may be busy.
TEST(NetworkProbe, ASlowPairOfTwoGoodNodesIsMeasuredAgain) {
  for (const bool is_slow : {false, true}) {
    const ProbeMeasurement good{true, 1e10, microseconds(20)};
    const ProbeMeasurement slow{true, 1e9, microseconds(20)};
    NetworkProbe probe(6);
    probe.begin(at(0));
    probe.result({0, 1}, slow);
    probe.result({2, 3}, good);
    probe.result({4, 5}, good);
    EXPECT_EQ(probe.next_round(at(0)), (std::vector<ProbePair>{{0, 2}, {1, 3}}));
    probe.result({0, 2}, good);
    probe.result({1, 3}, good);
    EXPECT_EQ(probe.next_round(at(0)), (std::vector<ProbePair>{{0, 1}, {2, 4}}));
    probe.result({0, 1}, is_slow ? slow : good);
    probe.result({2, 4}, good);
    EXPECT_TRUE(probe.next_round(at(0)).empty());
    EXPECT_EQ(probe.verdicts(), is_slow ? (Verdicts{{Kind::kLink, 0, 1}}) : Verdicts{});
  }
}

// Alone it would look as good as the many pairs of the first round.
TEST(NetworkProbe, AnOddNodeIsComparedWithAnotherPairOfItsRound) {
  const ProbeMeasurement busy{true, 1e9, microseconds(20)};
  const ProbeMeasurement good{true, 5e9, microseconds(20)};
  NetworkProbe probe(7);
  probe.begin(at(0));
  for (const std::size_t first : {0, 2, 4}) probe.result({first, first + 1}, busy);
  for (const std::size_t partner : {0, 1}) {
    const auto pairs = probe.next_round(at(0));
    ASSERT_EQ(pairs.size(), 2U);
    EXPECT_EQ(pairs[0], (ProbePair{6, partner}));
    probe.result(pairs[0], busy);
    probe.result(pairs[1], good);
  }
  EXPECT_TRUE(probe.next_round(at(0)).empty());
  EXPECT_EQ(probe.verdicts(), (Verdicts{{Kind::kSlow, 6}}));
}

TEST(NetworkProbe, AnAnswerWithinHalfAMillisecondIsNeverSlow) {
  NetworkProbe probe(4);
  probe.begin(at(0));
  probe.result({0, 1}, {true, 1e10, microseconds(20)});
  probe.result({2, 3}, {true, 1e10, microseconds(499)});
  EXPECT_TRUE(probe.next_round(at(0)).empty());
  EXPECT_TRUE(probe.verdicts().empty());
}

TEST(NetworkProbe, ANodeThatIsLostMeanwhileIsNotBlamedAndBlamesNoOther) {
  NetworkProbe probe(4);
  probe.begin(at(0));
  probe.result({0, 1}, {true, 1e10, microseconds(20)});
  probe.lost(3);
  ASSERT_TRUE(probe.is_due());
  EXPECT_EQ(probe.next_round(at(0)), (std::vector<ProbePair>{{2, 0}}));
  probe.lost(0);  // its good measurement with 1 stays
  ASSERT_TRUE(probe.is_due());
  EXPECT_EQ(probe.next_round(at(0)), (std::vector<ProbePair>{{2, 1}}));
  probe.result({2, 1}, {true, 1e10, microseconds(20)});
  EXPECT_TRUE(probe.next_round(at(0)).empty());
  EXPECT_TRUE(probe.verdicts().empty());
}

TEST(NetworkProbe, ABadMeasurementWithANodeThatIsLostThenIsForgotten) {
  NetworkProbe probe(3);
  probe.begin(at(0));
  probe.result({0, 1}, {});
  probe.lost(1);
  EXPECT_EQ(probe.next_round(at(0)), (std::vector<ProbePair>{{0, 2}}));
  probe.lost(0);
  EXPECT_TRUE(probe.next_round(at(0)).empty());
  EXPECT_TRUE(probe.verdicts().empty());
}

TEST(NetworkProbe, ResultsOfOtherPairsAndLateOnesAreIgnored) {
  NetworkProbe probe(4);
  probe.begin(at(0));
  probe.result({0, 2}, {true, 1, microseconds(1)});
  probe.result({0, 1}, {true, 1e10, microseconds(20)});
  probe.result({0, 1}, {});
  EXPECT_FALSE(probe.is_due());
  probe.tick(at(2));
  EXPECT_FALSE(probe.is_due());
  probe.tick(at(3));
  EXPECT_TRUE(probe.is_due());
  probe.result({2, 3}, {true, 1e10, microseconds(20)});
  EXPECT_EQ(probe.next_round(at(3)), (std::vector<ProbePair>{{2, 0}, {3, 1}}));
}

}  // namespace
}  // namespace elastic::gate
