#pragma once

// The values of a job's replicated register: records, voters, and the messages between the nodes
// that keep it. docs/rendezvous.md explains them. Pure.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/bytes.h"
#include "elastic/rendezvous_types.h"

namespace elastic::reg {

inline constexpr std::size_t kVotersMax = 5;
// Of "host:port" with the longest name, or "[address]:port": never cut, as it would be another one.
inline constexpr std::size_t kAddressBytesMax = kNodeTextBytesMax + sizeof "[]:65535";
// The greatest term and sequence: far from where counting on from a received number could wrap.
inline constexpr std::uint64_t kNumberMax = std::uint64_t{1} << 62;

// A job's lineage: drawn at random when its first round is formed. Terms are compared only within
// one lineage.
struct LineageId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  auto operator<=>(const LineageId&) const = default;
};

// A voter is one incarnation of an agent, a witness or a coordinator. Its id is used for one life.
struct Voter {
  NodeId node;
  std::string address;  // where the voter answers

  bool operator==(const Voter&) const = default;
};

// What the job's coordinator decides: a round with its member list, or a generation's result.
struct Content {
  std::uint64_t generation = 1;
  std::uint64_t round = 0;
  bool is_result = false;
  core::SharedBytes bytes;  // opaque here; megabytes

  bool operator==(const Content&) const = default;
};

// Which of two records of a lineage is newer: the one of the later term, then the later one of the
// term.
struct Newness {
  std::uint64_t term = 0;
  std::uint64_t sequence = 0;

  auto operator<=>(const Newness&) const = default;
};

struct Record {
  LineageId lineage;
  Newness newness;
  Voter proposer;
  std::vector<Voter> voters;
  // The voters of the record that this one replaces, whose majority must accept it too. Empty: the
  // majority of `voters` suffices (the lineage's first record, or one that was in force before).
  std::vector<Voter> previous_voters;
  Content content;
  // False in the messages of an election: they name the record, and the winner fetches the bytes of
  // its content.
  bool has_bytes = true;

  bool operator==(const Record&) const = default;
};

// A record, and whether this node knows that it is in force.
struct KnownRecord {
  Record record;
  bool is_in_force = false;

  bool operator==(const KnownRecord&) const = default;
};

// As the messages of an election name it.
inline KnownRecord without_bytes(const KnownRecord& known) {
  const Record& record = known.record;
  const Content& content = record.content;
  return {{record.lineage,
           record.newness,
           record.proposer,
           record.voters,
           record.previous_voters,
           {content.generation, content.round, content.is_result, {}},
           false},
          known.is_in_force};
}

// ---- Messages. Those of an election have records without bytes.

// A candidate asks whether the voter would promise. No state changes.
struct Ask {
  std::uint64_t attempt = 0;  // counts the candidate's attempts; repeated in the reply
  std::uint64_t term = 0;
  KnownRecord known;

  bool operator==(const Ask&) const = default;
};
struct AskReply {
  std::uint64_t attempt = 0;
  bool would_promise = false;
  std::uint64_t promised = 0;
  std::optional<KnownRecord> accepted;

  bool operator==(const AskReply&) const = default;
};

// A candidate asks for the promise to accept no record of a lower term.
struct Prepare {
  std::uint64_t term = 0;
  KnownRecord known;
  NodeId handed_over_by;  // the coordinator that asked the candidate to succeed it; zero: none

  bool operator==(const Prepare&) const = default;
};
struct Promise {
  std::uint64_t term = 0;
  bool is_granted = false;
  std::uint64_t promised = 0;
  std::optional<KnownRecord> accepted;

  bool operator==(const Promise&) const = default;
};

struct Accept {
  KnownRecord proposal;

  bool operator==(const Accept&) const = default;
};
struct Accepted {
  Newness newness;
  bool is_accepted = false;
  bool is_in_force = false;  // as far as the voter knows
  std::uint64_t promised = 0;

  bool operator==(const Accepted&) const = default;
};

// The record that the voter has accepted is in force.
struct InForce {
  Newness newness;

  bool operator==(const InForce&) const = default;
};

// The coordinator's promise for the next term, given to its successor before it is asked for.
struct HandOver {
  std::uint64_t term = 0;
  KnownRecord known;

  bool operator==(const HandOver&) const = default;
};

// Asks for the record that the voter reported with its vote; not answered if it has a different
// one.
struct Fetch {
  Newness newness;

  bool operator==(const Fetch&) const = default;
};
struct Fetched {
  KnownRecord accepted;

  bool operator==(const Fetched&) const = default;
};

using Body = std::variant<Ask, AskReply, Prepare, Promise, Accept, Accepted, InForce, HandOver,
                          Fetch, Fetched>;

struct Message {
  LineageId lineage;
  NodeId from;
  NodeId to;
  Body body;

  bool operator==(const Message&) const = default;
};

// ---- Who votes, and what a majority is (docs/rendezvous.md, R2 and R3).

// A node that could vote, as the coordinator knows it.
struct VoterCandidate {
  enum class Kind : std::uint8_t { kMember, kSpare, kWitness };

  Voter voter;
  std::string host;      // nodes with the same host fail together
  std::string topology;  // a hint: rack, switch, zone
  Kind kind = Kind::kMember;
  bool is_reachable = false;  // the coordinator has reached the voter's port
  // It leaves in order: as a voter it counts until it has ended, and it is chosen no more.
  bool is_leaving = false;

  bool may_be_chosen() const { return is_reachable && !is_leaving; }
  bool operator==(const VoterCandidate&) const = default;
};

// `count`: how many voters; 0: five with five hosts or more, three with three, otherwise one.
struct VoterChoice {
  std::size_t count = 0;
  bool are_hosts_distinct = true;
};

// Reachable candidates on different hosts: an odd number of them, spread over the topology hints.
// Members come before spares and witnesses, `current` voters before others, and `preferred` first
// (the coordinator's own node, where it is a candidate). Empty if no candidate is reachable.
std::vector<Voter> choose_voters(std::span<const VoterCandidate> candidates,
                                 std::span<const Voter> current, const NodeId& preferred,
                                 const VoterChoice& choice);

inline bool contains(std::span<const Voter> voters, const NodeId& node) {
  return std::any_of(voters.begin(), voters.end(),
                     [&](const Voter& voter) { return voter.node == node; });
}
inline bool names(const Record& record, const NodeId& node) {
  return contains(record.voters, node) || contains(record.previous_voters, node);
}
// The node is one of these candidates, and its voter port was reached.
inline bool has_reached(std::span<const VoterCandidate> candidates, const NodeId& node) {
  return std::any_of(candidates.begin(), candidates.end(), [&](const VoterCandidate& candidate) {
    return candidate.voter.node == node && candidate.is_reachable;
  });
}
// How many of the voters are among these nodes.
inline std::size_t count_in(std::span<const Voter> voters, const std::set<NodeId>& nodes) {
  return static_cast<std::size_t>(
      std::count_if(voters.begin(), voters.end(),
                    [&](const Voter& voter) { return nodes.contains(voter.node); }));
}
inline bool is_majority(std::span<const Voter> voters, const std::set<NodeId>& nodes) {
  return 2 * count_in(voters, nodes) > voters.size();
}

}  // namespace elastic::reg
