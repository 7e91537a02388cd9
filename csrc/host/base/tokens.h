#pragma once

// The tokens of a process, as its connections use them: both ends prove that they know the token of
// the job, and the bytes between them are encrypted. An extension implements it
// (host/auth/token_source.h). Loop thread only.

#include <cstdint>
#include <memory>
#include <string>

#include "elastic/status.h"
#include "os/net/stream.h"

namespace elastic::host {

// What a client may do.
enum class PeerRole : std::uint8_t {
  kNode,      // take part in the job
  kObserver,  // read
};

struct PeerIdentity {
  PeerRole role = PeerRole::kNode;
  std::string job_id;
};

class Tokens {
 public:
  virtual ~Tokens() = default;
  // Begins the handshake of a client of this job.
  virtual Result<std::unique_ptr<os::TlsSession>> connect(const std::string& job_id) = 0;
  // The server's end of a handshake. The tokens outlive it.
  virtual Result<std::unique_ptr<os::TlsSession>> accept() = 0;
  // In messages: "the token file /run/token", or "the token".
  virtual const std::string& name() const = 0;
};

}  // namespace elastic::host
