#pragma once

// A node's id, name and store address, for agents and for programs that start their own workers.

#include <string>

#include "core/rendezvous/rendezvous_events.h"
#include "elastic/rendezvous_options.h"

namespace elastic::host {

// A new incarnation with the values of the options; without name, address and workers.
core::NodeInfo make_node(const RendezvousOptions& options);

// The node's name in messages, and a sort key of ranks: the host's name and the process id, and a
// number for later nodes of one process. The address replaces a host name that names no host.
// Another one at each call. Any thread.
std::string make_node_name(const std::string& address);

// The host to bind the workers' store at, for a node that others reach at `address`. "": every
// interface, because a loopback address does not show from where other nodes will connect.
std::string store_host(const RendezvousOptions& options, const std::string& address);

}  // namespace elastic::host
