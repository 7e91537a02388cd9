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

std::string NamedSuccessor::note(const Successor& successor, const std::string& address,
                                 bool is_from_coordinator) {
  if (address.empty()) return "";  // it knows none
  const bool is_same_job = successor_ && successor_->lineage == successor.lineage;
  const bool is_settled = is_from_coordinator_ && !is_from_coordinator;
  if (is_settled && is_same_job && successor.term < successor_->term) return address_;
  if (!is_settled || (is_same_job && successor.term > successor_->term)) {
    successor_ = successor;
    address_ = address;
    is_from_coordinator_ = is_from_coordinator;
  }
  return address;
}

}  // namespace elastic::succession
