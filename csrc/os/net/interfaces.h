#pragma once

// The addresses of this machine. host_addresses() (elastic/host_addresses.h) is implemented here.

#include <string>
#include <vector>

#include "os/net/address.h"

namespace elastic::os {

// The addresses of all interfaces that are up, except loopback and link-local addresses.
std::vector<SocketAddress> interface_addresses();
// The local address of a connection to `peer`; "": no route.
std::string address_towards(const SocketAddress& peer);
// The local address of a connection to other networks; without a route, the first address of
// an interface. "": this machine has only loopback.
std::string primary_address();

}  // namespace elastic::os
