#pragma once

// What a node knows of a job with one voter while the job's coordinator ends. Pure.

#include <optional>
#include <string>

#include "core/succession/succession_events.h"
#include "core/succession/succession_types.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::succession {

// A job that its ending coordinator has sent to this node (session::TakeOver), until it is certain
// which node it has named as its successor.
//
// It may have asked several members, and names the first one that answers. The job begins here when
// that is this node: the ending coordinator says so, a node arrives that was sent here, or no other
// member can have been asked. Otherwise two coordinators could run the job.
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

// What a node that has lost its coordinator was told about the one that follows.
//
// An ending coordinator names its successor to its nodes, and the first of them that arrives there
// proves to that member that it was named. Other processes direct to coordinators as well, perhaps
// to one of long ago: that must not replace what a coordinator has said.
class NamedSuccessor {
 public:
  // A process has named it. `is_from_coordinator`: the one that ends. Returns the address to go to:
  // a later successor's that was named before, if there is one.
  std::string note(const Successor& successor, const std::string& address,
                   bool is_from_coordinator);
  // A coordinator has answered.
  void reset() { *this = {}; }
  const std::optional<Successor>& successor() const { return successor_; }

 private:
  std::optional<Successor> successor_;
  std::string address_;
  bool is_from_coordinator_ = false;
};

}  // namespace elastic::succession
