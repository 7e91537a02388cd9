#pragma once

// What a node that has lost its coordinator was told about the one that follows. Pure.
//
// An ending coordinator names its successor to its nodes, and the first of them that arrives there
// proves to that member that it was named (offered_job.h). Other processes direct to coordinators
// as well, perhaps to one of long ago: that must not replace what a coordinator has said.

#include <optional>
#include <string>

#include "core/succession/succession_types.h"

namespace elastic::succession {

class NamedSuccessor {
 public:
  // A process has named it. `is_from_coordinator`: the one that ends. Returns the address to go to:
  // that of a later one that was named before, if there is one.
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
