#include "core/register/register_types.h"

#include <map>
#include <set>
#include <tuple>

namespace elastic::reg {
namespace {

std::size_t count_hosts(std::span<const VoterCandidate> candidates) {
  std::set<std::string> hosts;
  for (const VoterCandidate& candidate : candidates) {
    if (candidate.is_reachable) hosts.insert(candidate.host);
  }
  return hosts.size();
}

std::size_t default_count(std::size_t hosts) { return hosts >= 5 ? 5 : hosts >= 3 ? 3 : 1; }

// The largest odd number that is neither above `wanted` nor above what there is.
std::size_t odd_at_most(std::size_t wanted, std::size_t available) {
  const std::size_t count = std::min({wanted, available, kVotersMax});
  return count % 2 == 0 && count > 0 ? count - 1 : count;
}

}  // namespace

// Greedy: each turn takes the candidate that adds most, so that the choice is the same for the same
// candidates in the same order, and a current voter is replaced only if it is unreachable or shares
// its host.
std::vector<Voter> choose_voters(std::span<const VoterCandidate> candidates,
                                 std::span<const Voter> current, const NodeId& preferred,
                                 const VoterChoice& choice) {
  std::size_t reachable = 0;
  for (const VoterCandidate& candidate : candidates) reachable += candidate.is_reachable ? 1u : 0u;
  const std::size_t places = choice.are_hosts_distinct ? count_hosts(candidates) : reachable;
  const std::size_t wanted = choice.count > 0 ? choice.count : default_count(places);
  const std::size_t count = odd_at_most(wanted, places);

  std::vector<Voter> voters;
  std::set<std::string> hosts;
  std::map<std::string, int> topologies;
  while (voters.size() < count) {
    const VoterCandidate* best = nullptr;
    auto cost_of = [&](const VoterCandidate& candidate) {
      return std::tuple(candidate.voter.node != preferred, candidate.kind,
                        topologies[candidate.topology], !contains(current, candidate.voter.node));
    };
    for (const VoterCandidate& candidate : candidates) {
      const bool is_taken = choice.are_hosts_distinct ? hosts.contains(candidate.host)
                                                      : contains(voters, candidate.voter.node);
      if (!candidate.is_reachable || is_taken) continue;
      if (best == nullptr || cost_of(candidate) < cost_of(*best)) best = &candidate;
    }
    if (best == nullptr) break;  // a node that is listed twice
    voters.push_back(best->voter);
    hosts.insert(best->host);
    ++topologies[best->topology];
  }
  return voters;
}

}  // namespace elastic::reg
