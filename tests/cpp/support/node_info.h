#pragma once

#include <cstdint>
#include <string>

#include "core/rendezvous/rendezvous_events.h"

namespace elastic::support {

// Of node `number` of a test: node1 at 10.0.0.1, whose next store has port 20001.
inline core::NodeInfo node_info(std::uint64_t number) {
  core::NodeInfo info;
  info.id = {1, number};
  info.name = "node" + std::to_string(number);
  info.address = "10.0.0." + std::to_string(number);
  info.store_port = static_cast<std::uint16_t>(20'000 + number);
  return info;
}

}  // namespace elastic::support
