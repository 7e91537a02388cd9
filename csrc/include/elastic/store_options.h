#pragma once

// What a store server accepts before it closes a connection. Every limit is checked before memory
// is taken for the bytes in question; the defaults admit everything that torch 2.13's server does.

#include <cstddef>

namespace elastic {

struct StoreLimits {
  // One key, with the "/" that PyTorch's client puts before it. torch's server has the same bound.
  std::size_t key_bytes_max = 8192;
  // One value as it arrives. APPEND may grow a stored value beyond it, up to total_bytes_max.
  std::size_t value_bytes_max = 8u << 20;
  // Keys in one CHECK, WAIT, MULTI_GET or MULTI_SET.
  std::size_t item_count_max = 131072;
  // One whole request: what a connection may make the server hold before it is complete.
  std::size_t frame_bytes_max = 64u << 20;
  // Replies that a client has asked for and does not read. Past it the connection is closed: a
  // reader that slow would otherwise take the server's memory.
  std::size_t output_bytes_max = 64u << 20;
  // Keys, values, queues and buffers of all connections together. A request that would pass it
  // closes its connection and changes nothing.
  std::size_t total_bytes_max = std::size_t{4} << 30;
  // Connections at one time; the next one is closed at once.
  std::size_t connections_max = 65536;
};

}  // namespace elastic
