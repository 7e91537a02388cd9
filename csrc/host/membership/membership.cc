#include "host/membership/membership.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "host/membership/local_membership.h"
#include "host/membership/session.h"
#include "host/membership/session_succession.h"
#include "os/base/process.h"
#include "os/net/address.h"

namespace elastic::host {

Result<std::unique_ptr<Membership>> open_membership(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    const std::string& run_id,
                                                    Membership::Sink sink,
                                                    std::uint16_t liveness_port) {
  if (options.is_single_node()) {
    LocalMembership::Options local{.settings = options.settings,
                                   .address = options.local_addr,
                                   .job_id = run_id,
                                   .observer_socket = options.observer_socket};
    return std::unique_ptr<Membership>(
        std::make_unique<LocalMembership>(loop, std::move(local), std::move(sink)));
  }
  auto session = Session::open(loop, options, run_id, std::move(sink), liveness_port);
  if (!session.ok()) return session.status();
  return std::unique_ptr<Membership>(*std::move(session));
}

std::unique_ptr<SuccessionPart> make_succession_part(os::EventLoop* loop,
                                                     const RendezvousOptions& options,
                                                     const std::string& run_id, Hosting* hosting,
                                                     SuccessionPart::Sink sink) {
  return std::make_unique<SessionSuccession>(loop, options, run_id, hosting, std::move(sink));
}

core::NodeInfo make_node(const RendezvousOptions& options) {
  core::NodeInfo node;
  node.id = {os::random_seed(), os::random_seed()};
  if (const std::string host = os::host_name(); host != "localhost") node.host = host;
  node.static_rank = options.node_rank;
  node.topology = options.topology;
  return node;
}

std::string make_node_name(const std::string& address) {
  static std::atomic<int> nodes_of_this_process{0};
  std::string name = os::host_name();
  if (name.empty() || name == "localhost") name = address;
  name += "_" + std::to_string(::getpid());
  const int earlier = nodes_of_this_process++;
  return earlier == 0 ? name : name + "_" + std::to_string(earlier);
}

std::vector<Endpoint> endpoints_of(const RendezvousOptions& options) {
  std::vector<Endpoint> all{{options.endpoint_host, options.endpoint_port}};
  all.insert(all.end(), options.further_endpoints.begin(), options.further_endpoints.end());
  return all;
}

std::string store_host(const RendezvousOptions& options, const std::string& address) {
  if (const auto literal = os::parse_address(options.local_addr)) return literal->host();
  const auto found = os::parse_address(address);
  const bool is_loopback_published =
      options.settings.max_nodes > 1 && found && found->is_loopback();
  return is_loopback_published ? "" : address;
}

}  // namespace elastic::host
