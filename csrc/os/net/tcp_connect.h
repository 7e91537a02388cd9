#pragma once

// The two halves of a non-blocking TCP connect, for those who wait in between: in poll(2)
// (StreamSocket) or on a loop (Dialer).

#include <string_view>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/net/address.h"

namespace elastic::os {

// Begins to connect. The socket is non-blocking, does not delay small segments, and probes a silent
// peer. It becomes writable when finish_connecting() may be called. Errors: kUnavailable (refused
// at once, no route), kResourceExhausted.
Result<UniqueFd> start_connecting(const SocketAddress& address);

// How it went: kUnavailable names the address and the cause. A failed socket should be closed.
Status finish_connecting(int fd, const SocketAddress& address);

// For a connection of few small messages whose peer must not miss a sign of life: what is not
// acknowledged within `silence_max` breaks it, and lost segments are repeated without ever longer
// pauses, where the kernel knows how.
void expect_liveness(int fd, Duration silence_max);

// Whatever breaks a connection is the peer's absence to the caller, except for our own lack.
Status connection_error(std::string_view context, int error);

}  // namespace elastic::os
