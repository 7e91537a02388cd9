#include "core/register/register_types.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace elastic::reg {
namespace {

std::size_t count_hosts(std::span<const VoterCandidate> candidates) {
  std::set<std::string> hosts;
  for (const VoterCandidate& candidate : candidates) {
    if (candidate.may_be_chosen()) hosts.insert(candidate.host);
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
  const auto eligible = static_cast<std::size_t>(std::count_if(
      candidates.begin(), candidates.end(), [](const auto& one) { return one.may_be_chosen(); }));
  const std::size_t places = choice.are_hosts_distinct ? count_hosts(candidates) : eligible;
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
      if (!candidate.may_be_chosen() || is_taken) continue;
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
