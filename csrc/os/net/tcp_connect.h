#pragma once

// The two steps of a non-blocking TCP connect. The caller waits between them in poll(2)
// (StreamSocket) or on a loop (Dialer).

#include <string_view>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/net/address.h"

namespace elastic::os {

// Begins to connect. The socket is non-blocking, does not delay small segments, and probes a silent
// peer. When it is writable, call finish_connecting(). Errors: kUnavailable (refused at once, no
// route), kResourceExhausted.
Result<UniqueFd> start_connecting(const SocketAddress& address);

// The errno of the result; ECONNREFUSED also for a socket that is connected to itself.
int connect_result(int fd);

// Returns the result: kUnavailable names the address and the cause. Close a failed socket.
Status finish_connecting(int fd, const SocketAddress& address);

// Whether the peer's host answered that nothing listens there.
bool is_refusal(const Status& status);

// For a connection with few small messages, such as heartbeats: it breaks if sent bytes are not
// acknowledged within `silence_max`, and lost segments are repeated at constant intervals if the
// kernel supports it.
void expect_liveness(int fd, Duration silence_max);

// kUnavailable for every error of a connection, except kResourceExhausted for a lack of our own.
Status connection_error(std::string_view context, int error);

}  // namespace elastic::os
