#pragma once

// As session_fields.h, which includes it: what nodes and coordinators send each other about checks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "core/session/session_wire.h"

namespace elastic::session {

template <typename Visitor>
void fields(Visitor& v, gate::Finding& finding) {
  v.name(finding.host, gate::kHostBytesMax);
  v.name(finding.check, gate::kCheckBytesMax);
  v.choice(finding.verdict, gate::Verdict::kUnknown);
  v.text(finding.reason, gate::kReasonBytesMax);
  v.duration(finding.age);
}

template <typename Visitor>
void fields(Visitor& v, gate::ProbeReport& report) {
  v.number(report.check);
  v.number(report.round);
  v.flag(report.has_answered);
  v.number(report.bytes_per_second);
  v.duration(report.latency);
  v.text(report.error, gate::kProbeErrorMax);
}

template <typename Visitor>
void fields(Visitor& v, gate::ProbeOrder& order) {
  v.number(order.check);
  v.number(order.round);
  v.name(order.address, gate::kProbeAddressMax);
  v.name(order.node, kNodeTextBytesMax);
  v.duration(order.limit);
}

template <typename Visitor>
void fields(Visitor& v, gate::NetworkFinding& found) {
  fields(v, found.finding);
}

// The rule that decided what followed each round, if any has one.
template <typename Visitor>
void extend_rules(Visitor& v, std::uint8_t tag, std::vector<ObservedRound>& rounds) {
  std::vector<std::string> rules;
  const auto has_rule = [](const ObservedRound& one) { return !one.rule.empty(); };
  if (std::any_of(rounds.begin(), rounds.end(), has_rule)) {
    for (const ObservedRound& one : rounds) rules.push_back(one.rule);
  }
  core::extend_value(v, tag, rules, [](auto& inner, auto& all) {
    inner.list(all, kRoundsObserved,
               [&](std::string& rule) { inner.text(rule, kMessageBytesMax); });
  });
  for (std::size_t i = 0; i < std::min(rounds.size(), rules.size()); ++i) rounds[i].rule = rules[i];
}

template <typename Visitor>
void fields(Visitor& v, RequestHost& request) {
  v.name(request.host, gate::kHostBytesMax);
  v.text(request.reason, gate::kReasonBytesMax);
  v.flag(request.is_readmission);
}

template <typename Visitor>
void fields(Visitor& v, HostReport& report) {
  v.flag(report.is_done);
  v.text(report.text, 2 * kMessageBytesMax);
}

}  // namespace elastic::session
