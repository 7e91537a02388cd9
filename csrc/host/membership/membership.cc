#include "host/membership/membership.h"

#include <utility>

#include "host/membership/local_membership.h"
#include "host/membership/session.h"

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

}  // namespace elastic::host
