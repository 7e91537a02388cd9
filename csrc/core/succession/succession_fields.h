#pragma once

// The fields of the values in succession_types.h as they are sent, as in rendezvous_fields.h: to
// nodes by session_wire.cc, and between voters by voter_wire.cc.

#include "core/rendezvous/rendezvous_fields.h"
#include "core/succession/succession_types.h"

namespace elastic::succession {

template <typename Visitor>
void visit(Visitor& v, reg::LineageId& lineage) {
  core::visit_id(v, lineage);
}

template <typename Visitor>
void visit(Visitor& v, Replaced& replaced) {
  visit(v, replaced.lineage);
  v.number(replaced.newest.term);
  v.number(replaced.newest.sequence);
}

// Without the lineages that it replaces, which each format has at its end.
template <typename Visitor>
void visit(Visitor& v, Incumbent& incumbent) {
  visit(v, incumbent.lineage);
  v.number(incumbent.term);
  visit(v, incumbent.node);
  v.name(incumbent.address, kNodeTextBytesMax);
  v.list(incumbent.voters, reg::kVotersMax, [&](reg::Voter& voter) {
    visit(v, voter.node);
    v.name(voter.address, kNodeTextBytesMax);
  });
}

}  // namespace elastic::succession
