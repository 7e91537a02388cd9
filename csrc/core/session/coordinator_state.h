#pragma once

// The content of a coordinator's state file: the jobs, each with its settings, the state of its
// rendezvous machine and the secrets of its nodes, and the excluded hosts of jobs that have ended.
// It has a version, and ends with a digest that detects damage. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
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

// The ids of jobs that have ended, with what they remember of hosts: HostGate::encode().
using StoredHosts = std::vector<std::pair<std::string, std::string>>;

std::string encode_jobs(std::vector<StoredJob> jobs, StoredHosts hosts = {});
// kPeerViolation: damaged, or not a state file; kFailedPrecondition: written by another version.
// `hosts`: may be null.
Result<std::vector<StoredJob>> decode_jobs(std::string_view bytes, StoredHosts* hosts = nullptr);

}  // namespace elastic::core
