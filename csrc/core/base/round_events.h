#pragma once

// What the parts of core::Job receive of a round (core/base/parts.h).

#include <cstdint>
#include <optional>
#include <string>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core::round_event {

// The node is a member of this round, or has resumed its session.
struct Began {
  NodeId node;
  std::uint64_t round = 0;
  std::string name = {};  // in messages
  // This coordinator has not formed the round: the time in which its other nodes may still resume.
  // Zero: it has.
  Duration resume_limit{};
  int nodes = 1;      // members of the round that have neither left nor been lost
  int min_nodes = 1;  // of a round
  // Not zero only with resume_limit, after which nodes have this long to report what they have
  // agreed on with another coordinator.
  Duration report_limit{};
};
// The round is over: its workers are being stopped.
struct Ended {};
// The job is over. The next one of the id may follow, and knows nothing of this one.
struct Over {};
// The node asks to leave.
struct Leaving {
  NodeId node;
};
struct Left {
  NodeId node;
  std::optional<int> nodes = {};  // as in Began, if it is known
};
// As rdzv::ClockGap.
struct ClockGap {
  Duration gap{};
};

}  // namespace elastic::core::round_event
