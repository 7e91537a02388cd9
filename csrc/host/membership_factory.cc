#include "host/membership_factory.h"

#include <utility>

#include "host/local_membership.h"

namespace elastic::host {

Result<std::unique_ptr<Membership>> open_membership(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    const std::string& /*run_id*/,
                                                    Membership::Sink sink) {
  if (options.is_single_node()) {
    return std::unique_ptr<Membership>(std::make_unique<LocalMembership>(
        loop, options.settings, options.local_addr, std::move(sink)));
  }
  return Status(StatusCode::kInvalidArgument,
                "jobs of more than one node are not available in this build");
}

}  // namespace elastic::host
