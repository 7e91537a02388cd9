#pragma once

#include <string>

#include "os/net/address.h"

namespace elastic::host {

// "localhost" and literal loopback addresses, which every machine resolves to itself.
inline bool is_loopback_name(const std::string& host) {
  const auto literal = os::parse_address(host);
  return literal ? literal->is_loopback() : host == "localhost" || host.ends_with(".localhost");
}

}  // namespace elastic::host
