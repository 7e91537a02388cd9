#pragma once

// The one place that knows which kind of membership a node's options ask for.

#include <memory>
#include <string>

#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/membership/membership.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Begins to look for the others. `loop` and what `sink` uses outlive the membership; events come
// from the loop, the first of them MembershipReady or MembershipLost. Errors are of the options
// (kInvalidArgument) or of a lack of resources; that nobody answers yet is none.
Result<std::unique_ptr<Membership>> open_membership(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    const std::string& run_id,
                                                    Membership::Sink sink);

}  // namespace elastic::host
