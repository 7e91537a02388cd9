#pragma once

// How a node reaches the rendezvous of its job. Plain values.
//
// Set at most one of endpoint_host (a coordinator) and backend (a shared compare-and-set state).
// With neither, the job has one node and uses no network.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "elastic/rendezvous_backend.h"
#include "elastic/rendezvous_types.h"

namespace elastic {

struct RendezvousOptions {
  JobSettings settings;

  // The coordinator's address: a name or a literal address; resolved again for every attempt.
  std::string endpoint_host;
  std::uint16_t endpoint_port = 0;
  // Whether this agent hosts the coordinator. nullopt: it does if the endpoint is an address of
  // this host and no process listens there yet.
  std::optional<bool> is_host;

  std::shared_ptr<RendezvousBackend> backend;

  // The address at which other nodes reach this one; a name is resolved once. "": the local
  // address of the connection to the coordinator.
  std::string local_addr;
  int node_rank = -1;    // with settings.static_ranks the rank, else a preferred rank; -1: none
  std::string topology;  // nodes are sorted by it: nodes with equal values get adjacent ranks

  bool is_single_node() const { return endpoint_host.empty() && backend == nullptr; }
};

}  // namespace elastic
