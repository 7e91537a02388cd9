#pragma once

// A job with one voter that its ending coordinator has sent to this node (session::TakeOver), until
// it is certain which node it has named as its successor. Pure.
//
// It may have asked several members, and names the first one that answers. The job begins here when
// that is this node: the ending coordinator says so, a node arrives that was sent here, or no other
// member can have been asked. Otherwise two coordinators could run the job.

#include <optional>

#include "core/succession/succession_events.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::succession {

class OfferedJob {
 public:
  // An error: the record cannot be continued. `self`: this node.
  static Result<OfferedJob> create(const StartCoordinator& start, const NodeId& self, Instant now);

  const StartCoordinator& start() const { return start_; }
  const NodeId& self() const { return self_; }
  // The record has no other node.
  bool is_alone() const { return is_alone_; }
  // A node with this in its hello was sent here by the ending coordinator.
  bool is_named_by(const std::optional<Successor>& successor) const {
    return successor == Successor{start_.lineage, start_.term};
  }

 private:
  OfferedJob(const StartCoordinator& start, const NodeId& self, bool is_alone)
      : start_(start), self_(self), is_alone_(is_alone) {}

  StartCoordinator start_;
  NodeId self_;
  bool is_alone_ = false;
};

}  // namespace elastic::succession
