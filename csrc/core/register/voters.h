#pragma once

// Who votes, and what a majority is (docs/register.md, R2 and R3). Pure.

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/register/register_types.h"

namespace elastic::reg {

// A node that could vote, as the coordinator knows it.
struct VoterCandidate {
  enum class Kind : std::uint8_t { kMember, kSpare, kWitness };

  Voter voter;
  std::string host;      // nodes with the same host fail together
  std::string topology;  // a hint: rack, switch, zone
  Kind kind = Kind::kMember;
  bool is_reachable = false;  // the coordinator has reached the voter's port

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
