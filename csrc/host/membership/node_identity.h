#pragma once

// A node's id, name and store address, for agents and for programs that start their own workers.

#include <string>

#include "elastic/rendezvous_options.h"

namespace elastic::host {

// A new incarnation with the values of the options; without name, address and workers.
NodeInfo make_node(const RendezvousOptions& options);

// addr_pid_localid, as torch names nodes; a new one for each call. Any thread.
std::string make_node_name(const std::string& address);

// The host's name, for people.
std::string host_name();

// The host to bind the workers' store at, for a node that others reach at `address`. "": every
// interface, because a loopback address does not show from where other nodes will connect.
std::string store_host(const RendezvousOptions& options, const std::string& address);

}  // namespace elastic::host
