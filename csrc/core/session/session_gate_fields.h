#pragma once

// As session_fields.h, which includes it: what nodes and coordinators send each other about checks.

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

}  // namespace elastic::session
