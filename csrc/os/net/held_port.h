#pragma once

// Reserves a TCP port for another program, which can bind it while it is reserved.
//
// The socket is bound with SO_REUSEADDR and never listens. So the kernel does not choose the port
// for a bind to port 0, but a program that sets SO_REUSEADDR, as servers do, can bind it.

#include <cstdint>
#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

class HeldPort {
 public:
  HeldPort() = default;
  // `host`: a literal address, or "" for every interface, both families. Port 0: any free port.
  static Result<HeldPort> open(const std::string& host, std::uint16_t port);

  bool is_held() const { return fd_.valid(); }
  std::uint16_t port() const { return port_; }

 private:
  HeldPort(UniqueFd fd, std::uint16_t port) : fd_(std::move(fd)), port_(port) {}

  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

}  // namespace elastic::os
