#pragma once

// Failures that only follow from another failure: a lost rank breaks the others' connections.
//
// Pure.

#include <string_view>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

// Whether an exception only tells that the connection to another rank broke: it follows the failure
// of that rank.
bool is_lost_peer(std::string_view error);

// Whether a failure of another worker, with evidence of that time, precedes the known one. That a
// peer was lost follows the failure of the peer, whose exit may be known later: a process that is
// killed closes its connections before its memory is freed.
bool precedes(const FailureReport& failure, Instant at, const FailureReport& known);

}  // namespace elastic::core
