#pragma once

// How a node reaches the rendezvous of its job, as plain values; and the addresses of this host.
//
// Set at most one of endpoint_host (where the coordinator is found) and backend (a store that keeps
// the job's record, and names the coordinator). With neither, the job has one node and uses no
// network.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/export.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/rendezvous_types.h"
#include "elastic/token_options.h"

namespace elastic {

// Ports first..last, both included; {0, 0}: any port.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
};

struct RendezvousOptions {
  JobSettings settings;

  // The coordinator's address: a name or a literal address; resolved again for every attempt.
  std::string endpoint_host;
  std::uint16_t endpoint_port = 0;
  // Further addresses at which the job is found when the first one does not answer; the same list
  // on every node. The agent on such a host listens there, and directs nodes to the coordinator.
  std::vector<Endpoint> further_endpoints;
  // Whether this agent hosts the coordinator. nullopt: it does if the endpoint is an address of
  // this host and no process listens there yet.
  std::optional<bool> is_host;

  // The job's token. With it, sessions with the coordinator are encrypted and authenticated, also
  // if this agent hosts it.
  TokenOptions token;

  std::shared_ptr<RendezvousBackend> backend;

  // The address at which other nodes reach this one; a name is resolved once. "": the local
  // address of the connection to the coordinator.
  std::string local_addr;
  int node_rank = -1;    // with settings.static_ranks the rank, else a preferred rank; -1: none
  std::string topology;  // nodes are sorted by it: nodes with equal values get adjacent ranks

  // How many nodes of a job with a coordinator keep its record, so that the job survives the loss
  // of the coordinator's host (docs/high-availability.md): 3 or 5, on different hosts. 0: by the
  // number of hosts; on fewer than three, one. 1: the job ends when its coordinator is lost for
  // good. Ignored with a backend, which keeps the record. Use 1 where the workers' store is at the
  // endpoint.
  int voters = 0;
  // A voter on a further machine that runs no node (elastic/witness.h): with it two nodes suffice.
  // The same one on every node; its name is resolved at the start.
  std::optional<Endpoint> witness = {};
  // The range of the ports at which this node answers other nodes, for firewalls: its voter port
  // and the port of a coordinator that it is elected to run.
  PortRange voter_ports = {};

  // As CoordinatorOptions::on_exclude, if this agent runs the job's coordinator.
  std::string on_exclude = {};

  // For a job with one node: the path of the Unix-domain socket at which observers of this user
  // connect (elastic/observer.h). It is removed at the end. "": the job cannot be observed.
  std::string observer_socket = {};

  bool is_single_node() const { return endpoint_host.empty() && backend == nullptr; }
};

struct HostAddress {
  std::string interface_name;  // "eth0"
  std::string address;         // numeric

  bool operator==(const HostAddress&) const = default;
};

// The addresses of all interfaces that are up, for a choice of RendezvousOptions::local_addr:
// loopback among them, in the kernel's order; without IPv6 link-local addresses, which are valid
// only together with an interface. Thread-safe. Empty: the kernel did not list them.
// (getifaddrs(3))
ELASTIC_EXPORT std::vector<HostAddress> host_addresses();

}  // namespace elastic
