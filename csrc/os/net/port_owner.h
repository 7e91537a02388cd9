#pragma once

#include <cstdint>
#include <string>

namespace elastic::os {

// Who listens on a TCP port of this network namespace, for an error message: "pid 4711 (python3
// train.py)". Empty when /proc does not tell: it shows the descriptors of other users' processes to
// root alone. Any thread.
std::string describe_port_owner(std::uint16_t port);

}  // namespace elastic::os
