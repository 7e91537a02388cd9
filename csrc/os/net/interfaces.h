#pragma once

// The addresses of this machine.

#include <string>
#include <vector>

#include "os/net/address.h"

namespace elastic::os {

// Of all interfaces that are up, without loopback and link-local ones.
std::vector<SocketAddress> interface_addresses();
// The address of this machine from which it reaches `peer`; "": there is no way to it.
std::string address_towards(const SocketAddress& peer);
// The one from which this machine reaches other networks; without a route to any, the first of its
// interfaces. "": there is none but loopback.
std::string primary_address();

}  // namespace elastic::os
