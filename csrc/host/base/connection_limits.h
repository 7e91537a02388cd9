#pragma once

// Limits that several services and clients of this layer share.

#include <chrono>
#include <cstddef>

#include "elastic/time.h"

namespace elastic::host {

// A connection's buffer of up to this size is kept while it is empty.
inline constexpr std::size_t kKeptBytes = 512;
// How long a rejected or closed peer may take to read the reason and close.
inline constexpr Duration kFinishTimeout = std::chrono::seconds(2);
// Keep-alive probes detect a vanished host after this time, also when nothing is sent to it.
inline constexpr Duration kKeepAliveInterval = std::chrono::seconds(5);
// When descriptors are exhausted, a listener accepts again after this time.
inline constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace elastic::host
