#include "core/base/lost_peer.h"

#include <algorithm>
#include <array>

namespace elastic::core {

bool is_lost_peer(std::string_view error) {
  const auto has_one_of = [error](const auto& signs) {
    return std::any_of(signs.begin(), signs.end(), [error](std::string_view sign) {
      return error.find(sign) != std::string_view::npos;
    });
  };
  constexpr std::array<std::string_view, 2> kOfNccl = {
      "remote process exited or there was a network error", "ncclRemoteError"};
  // The kernel says it about other connections of the script, too.
  constexpr std::array<std::string_view, 3> kOfTheKernel = {
      "Connection reset by peer", "Connection closed by peer", "Broken pipe"};
  constexpr std::array<std::string_view, 5> kTransports = {"gloo", "pair.cc", "TCPStore",
                                                           "torch.distributed.", "NCCL"};
  return has_one_of(kOfNccl) || (has_one_of(kOfTheKernel) && has_one_of(kTransports));
}

bool precedes(const FailureReport& failure, Instant at, const FailureReport& known) {
  const auto is_consequence = [](const FailureReport& one) {
    return one.evidence && is_lost_peer(one.evidence->error);
  };
  const bool follows = is_consequence(failure);
  return follows == is_consequence(known) ? at < known.at : !follows;
}

}  // namespace elastic::core
