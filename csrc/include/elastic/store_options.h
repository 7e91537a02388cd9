#pragma once

// The limits of a store server; a connection that exceeds one is closed. Every limit is checked
// before memory is allocated; the defaults accept everything that torch 2.13's server accepts.

#include <chrono>
#include <cstddef>

#include "elastic/time.h"

namespace elastic {

struct StoreLimits {
  // One key, with the "/" that PyTorch's client prepends. torch's server has the same limit.
  std::size_t key_bytes_max = 8192;
  // One value as it arrives. APPEND may grow a stored value beyond it, up to total_bytes_max.
  std::size_t value_bytes_max = 8u << 20;
  // Keys in one CHECK, WAIT, MULTI_GET or MULTI_SET.
  std::size_t item_count_max = 131072;
  // One whole request: the server buffers at most this much of an incomplete one.
  std::size_t frame_bytes_max = 64u << 20;
  // Replies that a client has not read. Beyond it the connection is closed, because a slow reader
  // would otherwise use up the server's memory.
  std::size_t output_bytes_max = 64u << 20;
  // Keys, values, queues and buffers of all connections together. A request that would exceed it
  // changes nothing, and its connection is closed.
  std::size_t total_bytes_max = std::size_t{4} << 30;
  // Connections at one time; the next one is closed at once.
  std::size_t connections_max = 131072;
  // A connection that has not sent VALIDATE by then is closed.
  Duration validate_timeout = std::chrono::seconds(30);
  // Connections of one address that have not sent VALIDATE or, as sessions with a coordinator,
  // their hello. One more closes the oldest of them. 0: a quarter of what this process can have.
  std::size_t pending_per_address_max = 0;
  // Descriptors that clients leave to the rest of the process (at most a quarter of its limit).
  std::size_t descriptors_reserved = 32;
};

}  // namespace elastic
