#include "core/succession/succession_types.h"

namespace elastic::succession {

CoordinatorInfo describe(const Incumbent& incumbent) {
  CoordinatorInfo info{.address = incumbent.address,
                       .lineage = to_string(NodeId{incumbent.lineage.high, incumbent.lineage.low}),
                       .term = incumbent.term,
                       .voters = {}};
  if (!incumbent.is_replicated()) return info;
  for (const reg::Voter& voter : incumbent.voters) info.voters.push_back(voter.address);
  return info;
}

std::string list_of(const std::vector<reg::Voter>& voters) {
  std::string all;
  for (const reg::Voter& voter : voters) all += (all.empty() ? "" : ", ") + voter.address;
  return all;
}

std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  const bool is_bracketed = host.starts_with('[') && host.ends_with(']');
  return is_bracketed ? host.substr(1, host.size() - 2) : host;
}

}  // namespace elastic::succession
