#pragma once

// How one node finds the others of its job.
//
// Plain values. Exactly one of the three ways holds: nothing set (a job of one node, no network),
// an endpoint (a coordinator), or a backend (a shared compare-and-set state).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "elastic/rendezvous_backend.h"
#include "elastic/rendezvous_types.h"

namespace elastic {

struct RendezvousOptions {
  JobSettings settings;

  // Where the coordinator is: a name or a literal address, looked up anew for every attempt.
  std::string endpoint_host;
  std::uint16_t endpoint_port = 0;
  // Whether this agent runs the coordinator. nullopt: it does if the endpoint's address is one of
  // this host's and nobody serves it yet.
  std::optional<bool> is_host;

  std::shared_ptr<RendezvousBackend> backend;

  // Where other nodes reach this one; a name is looked up once. "": the local end of the session.
  std::string local_addr;
  int node_rank = -1;    // given rank (settings.static_ranks), else a wish; -1: none
  std::string topology;  // nodes that sort together get neighbouring ranks

  bool is_single_node() const { return endpoint_host.empty() && backend == nullptr; }
};

}  // namespace elastic
