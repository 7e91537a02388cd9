#pragma once

// The addresses from which a store accepts requests. Its protocol cannot authenticate clients.

#include <set>
#include <string>
#include <utility>

#include "os/net/address.h"

namespace elastic::host {

class AddressFence {
 public:
  AddressFence() = default;
  explicit AddressFence(std::set<std::string> hosts) : hosts_(std::move(hosts)) {}

  // A numeric address, in the form of SocketAddress::host().
  void allow(std::string host) {
    if (hosts_.size() < kHostsMax) hosts_.insert(std::move(host));
  }
  // Clients on this host are allowed, too.
  bool allows(const os::SocketAddress& remote, const os::SocketAddress& local) const {
    const std::string host = remote.host();
    return remote.is_loopback() || host == local.host() || hosts_.contains(host);
  }

 private:
  static constexpr std::size_t kHostsMax = 200'000;

  std::set<std::string> hosts_;
};

}  // namespace elastic::host
