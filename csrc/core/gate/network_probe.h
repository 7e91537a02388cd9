#pragma once

// Which nodes, or links between two nodes, are slow or broken: pairs of nodes measure the network
// between them, all pairs of a round at once.
//
// The first round has neighbours. A pair that does not answer, or is much slower than the others,
// leaves two suspects, and each of them is measured with a node that was cleared. So a number of
// nodes of any size needs two rounds; a third one is for suspects without a cleared partner, or
// with one measurement only, and for a slow pair whose nodes were cleared. A node is bad if two
// measurements say so. If both nodes of a pair are cleared by others, their link is named, and no
// node.
//
//   gate::NetworkProbe probe(nodes);
//   for (auto pairs = probe.begin(now); !pairs.empty();) {
//     // each pair measures; call result() for each, and tick() at next_deadline(). When is_due():
//     pairs = probe.next_round(now);
//   }
//   probe.verdicts()
//
// Pure. Not thread-safe. Nodes are numbers from 0.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/time.h"

namespace elastic::gate {

// A pair has this long in each round, so that a probe takes less than 10 s.
inline constexpr Duration kProbeRoundLimit = std::chrono::seconds(3);
inline constexpr int kProbeRoundsMax = 3;
// Slower than a part of the median bandwidth, or than a multiple of the median latency.
inline constexpr double kSlowBandwidth = 0.5;
inline constexpr int kSlowLatency = 4;
// Less is never slow: it is the time in which a busy host answers.
inline constexpr Duration kLatencyUsual = std::chrono::microseconds(500);

struct ProbePair {
  std::size_t first = 0;
  std::size_t second = 0;

  bool operator==(const ProbePair&) const = default;
};

struct ProbeMeasurement {
  bool has_answered = false;
  double bytes_per_second = 0;
  Duration latency{};
};

struct ProbeVerdict {
  enum class Kind : std::uint8_t {
    kNode,  // this node is reached by none of its partners
    kSlow,  // it is reached, and slow with each of them
    kLink,  // both nodes are good with others
    kNone,  // a measurement was bad, and does not tell whose fault it is
  };
  Kind kind = Kind::kNone;
  std::size_t node = 0;
  std::optional<std::size_t> other = {};  // kLink, kNone: the second one

  bool operator==(const ProbeVerdict&) const = default;
};

class NetworkProbe {
 public:
  explicit NetworkProbe(std::size_t nodes) : nodes_(nodes) {}

  // The pairs of the first round; none if there are fewer than two nodes.
  std::vector<ProbePair> begin(Instant now);
  // Of a pair of this round; others are ignored.
  void result(const ProbePair& pair, const ProbeMeasurement& measured);
  // The node has left or was lost: bad measurements with it tell nothing about its partners, and
  // no further pair has it.
  void lost(std::size_t node);
  // Pairs without a result by next_deadline() have not answered.
  void tick(Instant now);
  std::optional<Instant> next_deadline() const { return deadline_; }
  // Every pair of the round has a result.
  bool is_due() const { return !deadline_ && round_ > 0; }
  // REQUIRES: is_due(). Empty: the probe is over.
  std::vector<ProbePair> next_round(Instant now);

  // By node. Empty: the network is good, as far as it was measured.
  std::vector<ProbeVerdict> verdicts() const;
  int rounds() const { return round_; }

  struct Test {
    ProbePair pair;
    std::optional<ProbeMeasurement> measured = {};
    int round = 0;

    bool has(std::size_t node) const { return pair.first == node || pair.second == node; }
    bool has_answer() const { return measured && measured->has_answered; }
  };
  const std::vector<Test>& tests() const { return tests_; }
  struct Medians {
    double bytes_per_second = 0;
    Duration latency{};
  };
  // Of the measurements of the first round that had an answer.
  Medians medians() const { return usual()[1]; }

 private:
  struct Node {
    bool is_cleared = false;
    int failed = 0;           // measurements that were bad
    int unanswered = 0;       // and had no answer
    bool by_cleared = false;  // one of the bad ones was with a cleared node
    bool is_condemned = false;
  };

  void check_round();
  using Usual = std::array<Medians, kProbeRoundsMax + 1>;  // by round
  std::optional<Medians> medians_of(int round) const;
  Usual usual() const;
  bool is_good(const Test& test, const Usual& usual) const;
  std::vector<Node> judge() const;
  std::size_t num_measured(const ProbePair& pair) const;
  bool may_be_busy(const Test& test, const Usual& usual, const std::vector<Node>& judged) const;
  bool were_paired(std::size_t a, std::size_t b) const;
  std::vector<ProbePair> start(std::vector<ProbePair> pairs, Instant now);

  std::size_t nodes_;
  std::vector<bool> is_lost_ = std::vector<bool>(nodes_, false);
  int round_ = 0;
  std::vector<Test> tests_;
  std::optional<Instant> deadline_;
};

}  // namespace elastic::gate
