#pragma once

// Who a node is to the others of its job, and where its workers' store listens: the same for an
// agent and for a program with workers of its own.

#include <string>

#include "elastic/rendezvous_options.h"

namespace elastic::host {

// A new incarnation with what the options say of it; without name, address and workers.
NodeInfo make_node(const RendezvousOptions& options);

// addr_pid_localid, as torch names nodes; another one at each call. Any thread.
std::string make_node_name(const std::string& address);

// The host's name, for people.
std::string host_name();

// The host to bind the workers' store at, for a node that others reach at `address`. "": every
// interface, because loopback tells nothing about where other nodes will come from.
std::string store_host(const RendezvousOptions& options, const std::string& address);

}  // namespace elastic::host
