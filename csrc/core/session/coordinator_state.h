#pragma once

// What a coordinator keeps in its state file: the jobs, each with its settings and the state of its
// rendezvous machine. Versioned, and with a digest at its end, which detects a damaged file. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/status.h"

namespace elastic::core {

struct StoredJob {
  std::string id;
  std::uint64_t term = 1;  // of the coordinator that wrote this
  JobSettings settings;
  std::string state;  // Rendezvous::encode()
};

std::string encode_jobs(std::vector<StoredJob> jobs);
// kPeerViolation: damaged or not a state; kFailedPrecondition: written by a newer version.
Result<std::vector<StoredJob>> decode_jobs(std::string_view bytes);

}  // namespace elastic::core
