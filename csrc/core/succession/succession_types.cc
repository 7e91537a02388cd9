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

}  // namespace elastic::succession
