#pragma once

#include <cstdint>
#include <string>

namespace elastic::core {

// "10.0.0.7:4711", "[::1]:4711".
inline std::string join_address(const std::string& host, std::uint16_t port) {
  const bool needs_brackets = host.find(':') != std::string::npos && host.front() != '[';
  return (needs_brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace elastic::core
