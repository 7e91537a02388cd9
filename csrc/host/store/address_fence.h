#pragma once

// The addresses from which a store accepts requests. Its protocol cannot authenticate clients.

#include <map>
#include <set>
#include <string>

#include "elastic/time.h"
#include "os/net/address.h"

namespace elastic::host {

class AddressFence {
 public:
  // An address stays allowed for `linger` after its last session has ended.
  explicit AddressFence(Duration linger) : linger_(linger) {}
  // These addresses, without any session.
  explicit AddressFence(const std::set<std::string>& hosts) : linger_{} {
    for (const std::string& host : hosts) session_begun(host);
  }

  // A session of this address has begun. A numeric address, in the form of SocketAddress::host().
  void session_begun(const std::string& host) {
    if (hosts_.size() < kHostsMax || hosts_.contains(host)) ++hosts_[host].sessions;
  }
  void session_ended(const std::string& host, Instant now) {
    if (hosts_.size() >= expire_at_) expire(now);
    const auto found = hosts_.find(host);
    if (found == hosts_.end() || found->second.sessions == 0) return;
    if (--found->second.sessions == 0) found->second.until = add_saturating(now, linger_);
  }
  // Clients on this host are allowed, too.
  bool allows(const os::SocketAddress& remote, const os::SocketAddress& local, Instant now) const {
    const std::string host = remote.host();
    return remote.is_loopback() || host == local.host() || allows(host, now);
  }
  bool allows(const std::string& host, Instant now) const {
    const auto found = hosts_.find(host);
    return found != hosts_.end() && (found->second.sessions > 0 || now < found->second.until);
  }

 private:
  static constexpr std::size_t kHostsMax = 200'000;
  static constexpr std::size_t kHostsMin = 64;
  struct Host {
    std::size_t sessions = 0;
    Instant until;  // without a session: allowed until then
  };

  // Not at each end: thousands of sessions may end together.
  void expire(Instant now) {
    std::erase_if(hosts_, [&](const auto& entry) {
      return entry.second.sessions == 0 && entry.second.until <= now;
    });
    expire_at_ = 2 * hosts_.size() + kHostsMin;
  }

  const Duration linger_;
  std::size_t expire_at_ = kHostsMin;
  std::map<std::string, Host> hosts_;
};

}  // namespace elastic::host
