#include "core/gate/network_probe.h"

#include <algorithm>

namespace elastic::gate {

std::vector<ProbePair> NetworkProbe::start(std::vector<ProbePair> pairs, Instant now) {
  if (pairs.empty()) return pairs;
  ++round_;
  for (const ProbePair& pair : pairs) tests_.push_back({.pair = pair, .round = round_});
  deadline_ = add_saturating(now, kProbeRoundLimit);
  return pairs;
}

std::vector<ProbePair> NetworkProbe::begin(Instant now) {
  std::vector<ProbePair> pairs;
  for (std::size_t node = 0; node + 1 < nodes_; node += 2) pairs.push_back({node, node + 1});
  return start(std::move(pairs), now);
}

void NetworkProbe::result(const ProbePair& pair, const ProbeMeasurement& measured) {
  if (!deadline_) return;
  for (Test& test : tests_) {
    if (test.round == round_ && test.pair == pair && !test.measured) test.measured = measured;
  }
  check_round();
}

void NetworkProbe::check_round() {
  const bool is_complete =
      std::all_of(tests_.begin(), tests_.end(), [](const Test& test) { return test.measured; });
  if (is_complete) deadline_.reset();
}

// A good one stays: it tells about both.
void NetworkProbe::lost(std::size_t node) {
  const Usual usual = this->usual();
  is_lost_[node] = true;
  std::erase_if(tests_, [&](const Test& test) { return test.has(node) && !is_good(test, usual); });
  check_round();
}

void NetworkProbe::tick(Instant now) {
  if (!deadline_ || now < *deadline_) return;
  for (Test& test : tests_) {
    if (!test.measured) test.measured = ProbeMeasurement{};
  }
  deadline_.reset();
}

// Of an even number the better one of the two in the middle: of two pairs the slow one is found. Of
// three nodes a slow one is in two of the three pairs, so that the best one is what is usual.
std::optional<NetworkProbe::Medians> NetworkProbe::medians_of(int round) const {
  const bool is_any = nodes_ == 3;
  std::vector<double> bandwidths;
  std::vector<Duration> latencies;
  for (const Test& test : tests_) {
    if (!test.has_answer() || (test.round != round && !is_any)) continue;
    bandwidths.push_back(test.measured->bytes_per_second);
    latencies.push_back(test.measured->latency);
  }
  if (bandwidths.empty()) return std::nullopt;
  std::sort(bandwidths.begin(), bandwidths.end());
  std::sort(latencies.begin(), latencies.end());
  if (is_any) return Medians{bandwidths.back(), latencies.front()};
  return Medians{bandwidths[bandwidths.size() / 2], latencies[(latencies.size() - 1) / 2]};
}

// A round with few pairs is faster than the first one where hosts or switches are shared.
NetworkProbe::Usual NetworkProbe::usual() const {
  Usual by_round;
  const auto first = medians_of(1);
  for (int round = 1; round <= kProbeRoundsMax; ++round) {
    const auto own = medians_of(round);
    Medians& usual = by_round[static_cast<std::size_t>(round)];
    usual = own.value_or(first.value_or(Medians{}));
    if (!own || !first) continue;
    usual.bytes_per_second = std::max(usual.bytes_per_second, first->bytes_per_second);
    usual.latency = std::min(usual.latency, first->latency);
  }
  return by_round;
}

bool NetworkProbe::is_good(const Test& test, const Usual& usual) const {
  if (!test.has_answer()) return false;
  const Medians& medians = usual[static_cast<std::size_t>(test.round)];
  return test.measured->bytes_per_second >= kSlowBandwidth * medians.bytes_per_second &&
         test.measured->latency <= std::max(kSlowLatency * medians.latency, kLatencyUsual);
}

// A good measurement clears both nodes, whatever others say: a node cannot look better than it is.
std::vector<NetworkProbe::Node> NetworkProbe::judge() const {
  const Usual usual = this->usual();
  std::vector<Node> nodes(nodes_);
  for (const Test& test : tests_) {
    if (!is_good(test, usual)) continue;
    nodes[test.pair.first].is_cleared = nodes[test.pair.second].is_cleared = true;
  }
  for (const Test& test : tests_) {
    if (!test.measured || is_good(test, usual)) continue;
    const auto note = [&](std::size_t node, std::size_t other) {
      ++nodes[node].failed;
      if (!test.measured->has_answered) ++nodes[node].unanswered;
      nodes[node].by_cleared = nodes[node].by_cleared || nodes[other].is_cleared;
    };
    note(test.pair.first, test.pair.second);
    note(test.pair.second, test.pair.first);
  }
  for (Node& node : nodes) {
    node.is_condemned = !node.is_cleared && node.failed >= 2 && node.by_cleared;
  }
  return nodes;
}

bool NetworkProbe::were_paired(std::size_t a, std::size_t b) const {
  return std::any_of(tests_.begin(), tests_.end(), [&](const Test& test) {
    return test.pair == ProbePair{a, b} || test.pair == ProbePair{b, a};
  });
}

std::size_t NetworkProbe::num_measured(const ProbePair& pair) const {
  return static_cast<std::size_t>(std::count_if(
      tests_.begin(), tests_.end(), [&](const Test& test) { return test.pair == pair; }));
}

// A slow pair of two nodes that are good with others is measured once more: a host may have been
// busy, or the switch, while all pairs measured.
bool NetworkProbe::may_be_busy(const Test& test, const Usual& usual,
                               const std::vector<Node>& judged) const {
  const auto [a, b] = test.pair;
  return test.has_answer() && !is_good(test, usual) && judged[a].is_cleared &&
         judged[b].is_cleared && !is_lost_[a] && !is_lost_[b] && num_measured(test.pair) == 1;
}

std::vector<ProbePair> NetworkProbe::next_round(Instant now) {
  if (round_ == kProbeRoundsMax) return {};
  const Usual usual = this->usual();
  const std::vector<Node> judged = judge();
  std::vector<bool> is_taken(nodes_, false);
  std::vector<ProbePair> pairs;
  const auto is_suspect = [&](std::size_t node) {
    const Node& one = judged[node];
    // One that was slow twice may have been busy.
    const bool is_sure = one.is_condemned && (one.unanswered > 0 || one.failed > 2);
    return !one.is_cleared && !is_sure && !is_lost_[node];
  };
  const auto pair_with = [&](std::size_t node, const auto& may_be) {
    for (std::size_t other = 0; other < nodes_; ++other) {
      if (other == node || is_taken[other] || is_lost_[other] || !may_be(other) ||
          were_paired(node, other)) {
        continue;
      }
      is_taken[node] = is_taken[other] = true;
      pairs.push_back({node, other});
      return;
    }
  };
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (!is_suspect(node)) continue;
    pair_with(node, [&](std::size_t other) { return judged[other].is_cleared; });
  }
  for (const Test& test : tests_) {
    const auto [a, b] = test.pair;
    if (is_taken[a] || is_taken[b] || !may_be_busy(test, usual, judged)) continue;
    is_taken[a] = is_taken[b] = true;
    pairs.push_back(test.pair);
  }
  // Of three nodes all pairs: one alone has nothing to be compared with.
  for (std::size_t node = 0; nodes_ == 3 && pairs.empty() && node < nodes_; ++node) {
    if (!is_lost_[node]) pair_with(node, [](std::size_t) { return true; });
  }
  // The others with each other: one of them may be cleared by that.
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (is_suspect(node) && !is_taken[node]) pair_with(node, is_suspect);
  }
  // One pair alone is compared with another one at the same time.
  for (std::size_t node = 0; nodes_ > 3 && pairs.size() == 1 && node < nodes_; ++node) {
    if (judged[node].is_cleared && !is_taken[node] && !is_lost_[node]) {
      pair_with(node, [&](std::size_t other) { return judged[other].is_cleared; });
    }
  }
  return start(std::move(pairs), now);
}

std::vector<ProbeVerdict> NetworkProbe::verdicts() const {
  using Kind = ProbeVerdict::Kind;
  const std::vector<Node> judged = judge();
  const Usual usual = this->usual();
  std::vector<ProbeVerdict> verdicts;
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (!judged[node].is_condemned || is_lost_[node]) continue;
    verdicts.push_back({judged[node].unanswered > 0 ? Kind::kNode : Kind::kSlow, node});
  }
  for (const Test& test : tests_) {
    if (!test.measured || is_good(test, usual)) continue;
    // Of a pair that was measured twice the second one counts.
    const bool is_last = std::none_of(tests_.begin(), tests_.end(), [&](const Test& one) {
      return one.pair == test.pair && one.round > test.round;
    });
    if (!is_last) continue;
    const Node& first = judged[test.pair.first];
    const Node& second = judged[test.pair.second];
    if (first.is_condemned || second.is_condemned) continue;
    const bool is_link = first.is_cleared && second.is_cleared;
    if (is_link && test.has_answer() && num_measured(test.pair) == 1) continue;
    verdicts.push_back({is_link ? Kind::kLink : Kind::kNone, test.pair.first, test.pair.second});
  }
  std::stable_sort(verdicts.begin(), verdicts.end(),
                   [](const auto& a, const auto& b) { return a.node < b.node; });
  return verdicts;
}

}  // namespace elastic::gate
