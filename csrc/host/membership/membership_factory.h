#pragma once

// Selects the kind of membership by a node's options.

#include <cstdint>
#include <memory>
#include <string>

#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/membership/membership.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Begins to look for the rendezvous. `loop` and what `sink` uses outlive the membership; events
// come from the loop, the first of them MembershipReady or MembershipLost. An error means invalid
// options (kInvalidArgument) or a lack of resources, not that no process has answered yet.
Result<std::unique_ptr<Membership>> open_membership(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    const std::string& run_id,
                                                    Membership::Sink sink,
                                                    std::uint16_t liveness_port = 0);

}  // namespace elastic::host
