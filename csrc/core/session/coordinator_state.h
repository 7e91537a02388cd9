#pragma once

// The content of a coordinator's state file: the jobs, each with its settings and the state of its
// rendezvous machine and the secrets of its nodes. It has a version, and ends with a digest that
// detects damage. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/session/session_wire.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"

namespace elastic::core {

struct StoredSecret {
  NodeId node;
  session::NodeSecret secret;
};

struct StoredJob {
  std::string id;
  std::uint64_t term = 1;  // of the coordinator that wrote this
  JobSettings settings;
  std::string state;  // RendezvousMachine::encode()
  // Only a hello with the same secret resumes the session of a node of the job.
  std::vector<StoredSecret> secrets = {};
};

std::string encode_jobs(std::vector<StoredJob> jobs);
// kPeerViolation: damaged, or not a state file; kFailedPrecondition: written by another version.
Result<std::vector<StoredJob>> decode_jobs(std::string_view bytes);

}  // namespace elastic::core
