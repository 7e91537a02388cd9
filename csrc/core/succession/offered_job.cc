#include "core/succession/offered_job.h"

#include <algorithm>
#include <vector>

#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::succession {

Result<OfferedJob> OfferedJob::create(const StartCoordinator& start, const NodeId& self,
                                      Instant now) {
  if (Status fault = start.record.settings.validate(); !fault.ok()) return fault;
  core::RendezvousMachine machine(start.record.settings, now, Duration::zero());
  const core::RendezvousSuccession succession{.term = start.term, .successor = self};
  if (Status fault = machine.succeed(start.record.state, succession, now); !fault.ok()) {
    return fault;
  }
  const std::vector<core::NodeStatus> nodes = machine.nodes(now);
  const bool is_alone = std::all_of(nodes.begin(), nodes.end(),
                                    [&](const core::NodeStatus& one) { return one.id == self; });
  return OfferedJob(start, self, is_alone);
}

}  // namespace elastic::succession
