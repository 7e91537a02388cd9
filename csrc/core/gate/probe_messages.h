#pragma once

// What a coordinator and a node send each other about the check of the network.
//
// Plain values.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/gate/finding.h"
#include "elastic/time.h"

namespace elastic::gate {

inline constexpr std::size_t kProbeAddressMax = 512;
inline constexpr std::size_t kProbeErrorMax = 255;
// A node has this long for an order; longer ones are cut.
inline constexpr Duration kProbeOrderLimit = std::chrono::milliseconds(2500);

// The node measures the network between it and another node, which answers at its own port.
struct ProbeOrder {
  std::uint64_t check = 0;  // a number of the coordinator's, which the report repeats
  std::uint32_t round = 0;
  std::string address;  // of the other node: host:port
  std::string node;     // its name
  Duration limit = kProbeOrderLimit;

  bool operator==(const ProbeOrder&) const = default;
};

struct ProbeReport {
  std::uint64_t check = 0;
  std::uint32_t round = 0;
  bool has_answered = false;
  std::uint64_t bytes_per_second = 0;  // in the slower direction
  Duration latency{};                  // of a message and its answer: the shortest one
  std::string error;                   // why there was no answer

  bool operator==(const ProbeReport&) const = default;
};

// What the check has found about the node itself.
struct NetworkFinding {
  Finding finding;

  bool operator==(const NetworkFinding&) const = default;
};

}  // namespace elastic::gate
