#pragma once

// The values of the succession of a job's coordinator (docs/high-availability.md), their fields,
// and the sentence that tells which losses a job survives. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/describe.h"
#include "core/register/register_types.h"
#include "core/rendezvous/rendezvous_fields.h"
#include "elastic/coordinator.h"
#include "elastic/rendezvous_types.h"

namespace elastic::succession {

inline constexpr std::size_t kJobIdBytesMax = 1024;

// The coordinator of a lineage in a term, as it is announced to nodes.
struct Incumbent {
  reg::LineageId lineage;
  std::uint64_t term = 0;
  NodeId node;          // the proposer: the node whose process runs the coordinator
  std::string address;  // where it accepts sessions: numeric, host:port; "": unknown
  // Where a node that has lost the coordinator asks for the next one. One voter, or none: the job
  // does not survive its coordinator's host, and a restarted coordinator may take it over.
  std::vector<reg::Voter> voters;

  // Only voters of the lineage name a coordinator.
  bool is_replicated() const { return voters.size() > 1; }
  bool operator==(const Incumbent&) const = default;
};

// The incumbent as users see it.
CoordinatorInfo describe(const Incumbent& incumbent);
// Their addresses, for messages.
std::string list_of(const std::vector<reg::Voter>& voters);
// "10.0.0.7:4711" -> "10.0.0.7", "[::1]:4711" -> "::1".
std::string host_of(const std::string& address);

// A coordinator that a node was sent to.
struct Successor {
  reg::LineageId lineage = {};
  std::uint64_t term = 0;

  bool operator==(const Successor&) const = default;
};

// A node as its coordinator knows it.
struct KnownNode {
  NodeId node;
  std::string voter_address;  // of its voter port, from its hello; "": it has none
  std::string host;           // nodes with the same host fail together: NodeInfo.address
  std::string topology;
  reg::VoterCandidate::Kind kind = reg::VoterCandidate::Kind::kMember;
  bool is_connected = false;  // its session is open
  bool has_left = false;      // its leave is not acknowledged yet

  bool operator==(const KnownNode&) const = default;
};

// A stream on the voter port, accepted or opened, as the transport numbers it; 0: none.
using ConnectionId = std::uint64_t;

// ---- The fields of these values as they are sent, as in rendezvous_fields.h: to nodes by
// session_wire.cc, and between voters by voter_wire.cc.

template <typename Visitor>
void visit(Visitor& v, reg::LineageId& lineage) {
  core::visit_id(v, lineage);
}

template <typename Visitor>
void visit(Visitor& v, Incumbent& incumbent) {
  visit(v, incumbent.lineage);
  v.number(incumbent.term);
  v.check(incumbent.term <= reg::kNumberMax);
  visit(v, incumbent.node);
  v.name(incumbent.address, reg::kAddressBytesMax);
  v.list(incumbent.voters, reg::kVotersMax, [&](reg::Voter& voter) {
    visit(v, voter.node);
    v.name(voter.address, reg::kAddressBytesMax);
  });
}

// ---- Which losses of hosts a job survives.

// Fewer voters survive no loss.
inline constexpr std::size_t kVotersNeeded = 3;

struct SurvivalFacts {
  std::size_t voters = 0;      // that keep the job's record; below kVotersNeeded: the coordinator
  std::size_t lost = 0;        // of them, that the coordinator does not reach
  bool wants_voters = true;    // voters is not 1
  std::string host = {};       // of the coordinator; "": unknown
  std::string unreached = {};  // voter ports of further hosts that did not answer, as a list
  bool has_witness = false;    // one is configured
  std::string unreached_witnesses = {};
  // The round's nodes; 0: no round was formed yet.
  int nodes = 0;
  int min_nodes = 1;
  int spares = 0;
  core::RestartBudget restarts = {};
};

// One sentence for the job's log.
std::string describe_survival(const SurvivalFacts& facts);

}  // namespace elastic::succession
