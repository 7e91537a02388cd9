#pragma once

#include <cstdint>
#include <string>

namespace elastic::os {

// The process that listens on a TCP port of this network namespace, for an error message: "pid 4711
// (python3 train.py)". Empty if it is unknown: /proc shows the descriptors of other users'
// processes only to root. Any thread.
std::string describe_port_owner(std::uint16_t port);

}  // namespace elastic::os
