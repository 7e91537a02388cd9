#pragma once

// What the rendezvous asks about a host: whether a round is better formed without it. An extension
// implements it (core/gate/host_memory.h).

#include <cstddef>
#include <string>
#include <string_view>

#include "elastic/time.h"

namespace elastic::core {

inline constexpr std::size_t kHostGateBytesMax = std::size_t{1} << 20;  // of encode()

class HostGate {
 public:
  // Why nodes of the host are in no round that has enough others; "": they may be.
  virtual std::string why_excluded(std::string_view host) const = 0;
  // A rule of the failure policy decides it.
  virtual void exclude(const std::string& host, const std::string& why, Instant now) = 0;
  // Ends what has expired. True: the answers above have changed.
  virtual bool expire(Instant now) = 0;
  virtual Instant next_expiry() const = 0;  // Instant::max(): none

  // Its part of the job's state; without instants, as the rest.
  virtual std::string encode(Instant now) const = 0;
  // False: these are not such bytes. Then nothing has changed.
  virtual bool decode(std::string_view bytes, Instant now) = 0;

 protected:
  ~HostGate() = default;
};

}  // namespace elastic::core
