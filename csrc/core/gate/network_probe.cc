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
  bool is_complete = true;
  for (Test& test : tests_) {
    if (test.round == round_ && test.pair == pair && !test.measured) test.measured = measured;
    is_complete = is_complete && test.measured;
  }
  if (is_complete) deadline_.reset();
}

void NetworkProbe::tick(Instant now) {
  if (!deadline_ || now < *deadline_) return;
  for (Test& test : tests_) {
    if (!test.measured) test.measured = ProbeMeasurement{};
  }
  deadline_.reset();
}

// Of an even number the better one of the two in the middle: of two pairs the slow one is found.
NetworkProbe::Medians NetworkProbe::medians() const {
  std::vector<double> bandwidths;
  std::vector<Duration> latencies;
  for (const Test& test : tests_) {
    if (!test.measured || !test.measured->has_answered) continue;
    bandwidths.push_back(test.measured->bytes_per_second);
    latencies.push_back(test.measured->latency);
  }
  if (bandwidths.empty()) return {};
  std::sort(bandwidths.begin(), bandwidths.end());
  std::sort(latencies.begin(), latencies.end());
  return {bandwidths[bandwidths.size() / 2], latencies[(latencies.size() - 1) / 2]};
}

bool NetworkProbe::is_good(const ProbeMeasurement& measured, const Medians& usual) const {
  return measured.has_answered &&
         measured.bytes_per_second >= kSlowBandwidth * usual.bytes_per_second &&
         measured.latency <= kSlowLatency * usual.latency;
}

// A good measurement clears both nodes, whatever others say: a node cannot look better than it is.
std::vector<NetworkProbe::Node> NetworkProbe::judge() const {
  const Medians usual = medians();
  std::vector<Node> nodes(nodes_);
  for (const Test& test : tests_) {
    if (!test.measured || !is_good(*test.measured, usual)) continue;
    nodes[test.pair.first].is_cleared = nodes[test.pair.second].is_cleared = true;
  }
  for (const Test& test : tests_) {
    if (!test.measured || is_good(*test.measured, usual)) continue;
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

std::vector<ProbePair> NetworkProbe::next_round(Instant now) {
  if (round_ == kProbeRoundsMax) return {};
  const std::vector<Node> judged = judge();
  std::vector<bool> is_taken(nodes_, false);
  std::vector<ProbePair> pairs;
  const auto is_suspect = [&](std::size_t node) {
    return !judged[node].is_cleared && !judged[node].is_condemned;
  };
  const auto pair_with = [&](std::size_t node, const auto& may_be) {
    for (std::size_t other = 0; other < nodes_; ++other) {
      if (other == node || is_taken[other] || !may_be(other) || were_paired(node, other)) continue;
      is_taken[node] = is_taken[other] = true;
      pairs.push_back({node, other});
      return;
    }
  };
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (!is_suspect(node)) continue;
    pair_with(node, [&](std::size_t other) { return judged[other].is_cleared; });
  }
  // The others with each other: one of them may be cleared by that.
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (is_suspect(node) && !is_taken[node]) pair_with(node, is_suspect);
  }
  return start(std::move(pairs), now);
}

std::vector<ProbeVerdict> NetworkProbe::verdicts() const {
  using Kind = ProbeVerdict::Kind;
  const std::vector<Node> judged = judge();
  const Medians usual = medians();
  std::vector<ProbeVerdict> verdicts;
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (!judged[node].is_condemned) continue;
    verdicts.push_back({judged[node].unanswered > 0 ? Kind::kNode : Kind::kSlow, node});
  }
  for (const Test& test : tests_) {
    if (!test.measured || is_good(*test.measured, usual)) continue;
    const Node& first = judged[test.pair.first];
    const Node& second = judged[test.pair.second];
    if (first.is_condemned || second.is_condemned) continue;
    const bool is_link = first.is_cleared && second.is_cleared;
    verdicts.push_back({is_link ? Kind::kLink : Kind::kNone, test.pair.first, test.pair.second});
  }
  std::stable_sort(verdicts.begin(), verdicts.end(),
                   [](const auto& a, const auto& b) { return a.node < b.node; });
  return verdicts;
}

}  // namespace elastic::gate
