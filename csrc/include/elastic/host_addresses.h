#pragma once

// The addresses of this host, for a choice of RendezvousOptions::local_addr.

#include <string>
#include <vector>

#include "elastic/export.h"

namespace elastic {

struct HostAddress {
  std::string interface_name;  // "eth0"
  std::string address;         // numeric

  bool operator==(const HostAddress&) const = default;
};

// Those of all interfaces that are up, loopback among them, in the kernel's order; without IPv6
// link-local addresses, which are valid only together with an interface. Thread-safe. Empty: the
// kernel did not list them. (getifaddrs(3))
ELASTIC_EXPORT std::vector<HostAddress> host_addresses();

}  // namespace elastic
