#pragma once

// A TCP port that is kept for another program, which binds it although it is held.
//
// The socket is bound with SO_REUSEADDR and never listens: the kernel gives the port to nobody who
// asks for any, and lets a program bind it that sets SO_REUSEADDR itself, as servers do.

#include <cstdint>
#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

class HeldPort {
 public:
  HeldPort() = default;
  // `host`: a literal address, or "" for every interface, both families. Port 0: a free one.
  static Result<HeldPort> open(const std::string& host, std::uint16_t port);

  bool is_held() const { return fd_.valid(); }
  std::uint16_t port() const { return port_; }

 private:
  HeldPort(UniqueFd fd, std::uint16_t port) : fd_(std::move(fd)), port_(port) {}

  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

}  // namespace elastic::os
