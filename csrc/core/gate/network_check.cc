#include "core/gate/network_check.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/base/text.h"
#include "core/gate/node_checks.h"

// Theory of operation. Of a pair the first node has the order, and the second one answers at its
// port every node that asks; so the pair of a node that has stopped has no answer. A pair that
// fails alone excludes no host: only verdicts about one node are bad.

namespace elastic::gate {
namespace {

using core::count_text;
using core::duration_text;

bool is_about(const ProbeVerdict& verdict, std::size_t node) {
  return verdict.node == node || verdict.other == node;
}

}  // namespace

std::string rate_text(double bytes_per_second) {
  static constexpr std::array kUnits = {"B/s", "kB/s", "MB/s", "GB/s"};
  std::size_t unit = 0;
  for (; bytes_per_second >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes_per_second /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", bytes_per_second, kUnits[unit]);
  return text;
}

void NetworkCheck::begin(std::vector<ProbedNode> nodes, Instant now, Out* out) {
  if (is_running()) return;
  if (nodes.size() < 2) {
    out->emplace_back(
        network_action::Log{"the network is not checked: " + count_text(nodes.size(), "node") +
                            " of the round has --node-check=network, and it takes two"});
    return;
  }
  nodes_ = std::move(nodes);
  is_lost_.assign(nodes_.size(), false);
  errors_.clear();
  began_ = now;
  // A report to another coordinator, or of an earlier check, has another number.
  number_ = std::max(number_ + 1, static_cast<std::uint64_t>(now.time_since_epoch().count()));
  out->emplace_back(network_action::Log{"checking the network between " +
                                        count_text(nodes_.size(), "node") + " in pairs"});
  probe_.emplace(nodes_.size());
  start(probe_->begin(now), out);
}

void NetworkCheck::start(const std::vector<ProbePair>& pairs, Out* out) {
  pairs_ = pairs;
  for (const ProbePair& pair : pairs_) {
    const ProbedNode& partner = nodes_[pair.second];
    out->emplace_back(network_action::Order{nodes_[pair.first].id,
                                            {.check = number_,
                                             .round = static_cast<std::uint32_t>(probe_->rounds()),
                                             .address = partner.address,
                                             .node = partner.name}});
  }
}

std::optional<std::size_t> NetworkCheck::index_of(const NodeId& node) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const ProbedNode& one) { return one.id == node; });
  if (found == nodes_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - nodes_.begin());
}

void NetworkCheck::on(const core::job_event::Probed& event, Instant now, Out* out) {
  const ProbeReport& report = event.report;
  if (!is_running() || report.check != number_ ||
      report.round != static_cast<std::uint32_t>(probe_->rounds())) {
    return;
  }
  const auto node = index_of(event.node);
  const auto pair = std::find_if(pairs_.begin(), pairs_.end(),
                                 [&](const ProbePair& one) { return node == one.first; });
  if (pair == pairs_.end()) return;
  if (!report.error.empty()) errors_[{pair->first, pair->second}] = report.error;
  probe_->result(*pair, {report.has_answered, static_cast<double>(report.bytes_per_second),
                         std::max(report.latency, Duration::zero())});
  follow(now, out);
}

void NetworkCheck::lost(const NodeId& node, Instant now, Out* out) {
  const auto index = is_running() ? index_of(node) : std::nullopt;
  if (!index || is_lost_[*index]) return;
  is_lost_[*index] = true;
  probe_->lost(*index);
  follow(now, out);
}

void NetworkCheck::on(const core::PartTick&, Instant now, Out* out) {
  if (!is_running()) return;
  probe_->tick(now);
  follow(now, out);
}

std::optional<Instant> NetworkCheck::next_deadline() const {
  return is_running() ? probe_->next_deadline() : std::nullopt;
}

void NetworkCheck::follow(Instant now, Out* out) {
  if (!probe_->is_due()) return;
  const std::vector<ProbePair> pairs = probe_->next_round(now);
  if (pairs.empty()) return finish(now, out);
  start(pairs, out);
}

std::string NetworkCheck::describe() const {
  if (!is_running()) return "";
  return "the network between " + count_text(nodes_.size(), "node") + " is checked (round " +
         std::to_string(probe_->rounds()) + ", " + count_text(pairs_.size(), "pair") + ")";
}

// Of two nodes on one host the name of each.
std::string NetworkCheck::label(std::size_t node) const {
  const std::string& host = nodes_[node].host;
  const auto same = std::count_if(nodes_.begin(), nodes_.end(),
                                  [&](const ProbedNode& one) { return one.host == host; });
  return same == 1 ? host : nodes_[node].name;
}

std::string NetworkCheck::measured_text(const ProbePair& pair,
                                        const ProbeMeasurement& measured) const {
  if (measured.has_answered) {
    return rate_text(measured.bytes_per_second) + " and " + duration_text(measured.latency);
  }
  const auto error = errors_.find({pair.first, pair.second});
  return error == errors_.end() ? "no report of " + label(pair.first) + " in time" : error->second;
}

Finding NetworkCheck::finding_of(std::size_t node,
                                 const std::vector<ProbeVerdict>& verdicts) const {
  using Kind = ProbeVerdict::Kind;
  const NetworkProbe::Medians usual = probe_->medians();
  std::string measured;
  for (const NetworkProbe::Test& test : probe_->tests()) {
    if (!test.has(node) || !test.measured) continue;
    const std::size_t other = test.pair.first == node ? test.pair.second : test.pair.first;
    measured += (measured.empty() ? "with " : ", with ") + label(other) + ": " +
                measured_text(test.pair, *test.measured);
  }
  Finding finding{nodes_[node].host, kNetworkCheck, Verdict::kGood, measured, {}};
  const auto verdict = std::find_if(verdicts.begin(), verdicts.end(),
                                    [&](const ProbeVerdict& one) { return is_about(one, node); });
  if (verdict == verdicts.end()) {
    if (measured.empty()) {
      finding.verdict = Verdict::kUnknown;
      finding.reason = "no other node was left to measure with";
    }
    return finding;
  }
  const std::string median =
      "the median is " + rate_text(usual.bytes_per_second) + " and " + duration_text(usual.latency);
  const auto of_pair = [&](const std::string& what) {
    const std::size_t other = verdict->node == node ? *verdict->other : verdict->node;
    return "the network between it and " + label(other) + " is bad" + what + "; " + measured;
  };
  finding.verdict = Verdict::kUnknown;
  switch (verdict->kind) {
    case Kind::kNode:
      finding.verdict = Verdict::kBad;
      finding.reason = "other nodes cannot use the network to it: " + measured;
      break;
    case Kind::kSlow:
      finding.verdict = Verdict::kBad;
      finding.reason = "its network is slow: " + measured + "; " + median;
      break;
    case Kind::kLink:
      finding.reason = of_pair(", and both are good with others: look at the link");
      break;
    case Kind::kNone:
      finding.reason = of_pair(", and too few nodes are here to know whose fault it is");
      break;
  }
  return finding;
}

void NetworkCheck::finish(Instant now, Out* out) {
  const std::vector<ProbeVerdict> verdicts = probe_->verdicts();
  std::array<std::size_t, 3> found{};
  std::vector<network_action::Inform> informs;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (is_lost_[node]) continue;
    Finding finding = finding_of(node, verdicts);
    finding.reason = core::to_printable(finding.reason, core::Lines::kOne, kReasonBytesMax);
    ++found[static_cast<std::size_t>(finding.verdict)];
    informs.push_back({nodes_[node].id, std::move(finding)});
  }
  const NetworkProbe::Medians usual = probe_->medians();
  std::string text = "the network between " + count_text(nodes_.size(), "node") +
                     " was checked in " + duration_text(now - began_) + ": ";
  const auto bad = found[static_cast<std::size_t>(Verdict::kBad)];
  const auto unknown = found[static_cast<std::size_t>(Verdict::kUnknown)];
  text += bad + unknown == 0
              ? "good"
              : std::to_string(bad) + " bad, " + std::to_string(unknown) + " unknown";
  if (usual.bytes_per_second > 0) {
    text +=
        ", median " + rate_text(usual.bytes_per_second) + " and " + duration_text(usual.latency);
  }
  out->emplace_back(network_action::Log{std::move(text)});
  for (network_action::Inform& inform : informs) {
    if (inform.finding.verdict != Verdict::kGood) {
      out->emplace_back(network_action::Log{gate::describe(inform.finding)});
    }
    out->emplace_back(std::move(inform));
  }
  probe_.reset();
  nodes_.clear();
  pairs_.clear();
}

}  // namespace elastic::gate
