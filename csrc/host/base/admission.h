#pragma once

// Whom a service admits: the connections that have sent no handshake, the addresses that may use a
// store, the log of those that may not, and limits that the services share. Loop thread only.

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "elastic/time.h"
#include "os/net/address.h"

namespace elastic::host {

// How long a rejected or closed peer may take to read the reason and close.
inline constexpr Duration kFinishTimeout = std::chrono::seconds(2);
// Keep-alive probes detect a vanished host after this time, also when nothing is sent to it.
inline constexpr Duration kKeepAliveInterval = std::chrono::seconds(5);
// When descriptors are exhausted, a listener accepts again after this time.
inline constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

// The connections of a listener that have not sent a handshake: their number for each address, and
// their order by age.
//
// Clients that connect and send nothing must not block other clients. So the oldest connection of
// an address that has too many of them is closed for a new one; if there are too many of all
// addresses, or descriptors are short, the oldest one of any address.
class PendingConnections {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  // REQUIRES: per_address_max > 0, total_max > 0
  explicit PendingConnections(std::size_t per_address_max, std::size_t total_max = kNoLimit)
      : per_address_max_(per_address_max), total_max_(total_max) {}
  PendingConnections(const PendingConnections&) = delete;
  PendingConnections& operator=(const PendingConnections&) = delete;

  // A connection is pending while it has its ticket. This object outlives the ticket.
  class Ticket;

  // For connections that are added from now on.
  void set_total_max(std::size_t total_max) { total_max_ = total_max; }
  // `close`: closes the connection. It is no longer pending when this is called, once.
  std::unique_ptr<Ticket> add(const std::string& address, std::function<void()> close);
  // Closes the oldest of all. False: there is none.
  bool close_oldest();
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry;
  using Entries = std::list<Entry>;
  using OfAddress = std::list<Entries::iterator>;  // oldest first
  struct Entry {
    std::map<std::string, OfAddress>::iterator address;
    OfAddress::iterator place;
    std::function<void()> close;
    Ticket* ticket;
  };

  void remove(Entries::iterator entry);
  void close(Entries::iterator entry);

  const std::size_t per_address_max_;
  std::size_t total_max_;
  Entries entries_;  // oldest first
  std::map<std::string, OfAddress> addresses_;
};

class PendingConnections::Ticket {
 public:
  Ticket(PendingConnections* owner, Entries::iterator entry) : owner_(owner), entry_(entry) {}
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() {
    if (owner_ != nullptr) owner_->remove(entry_);
  }

 private:
  friend class PendingConnections;
  PendingConnections* owner_;  // null: its entry was removed
  const Entries::iterator entry_;
};

// Log lines about clients that are not admitted: one for each address and minute.
//
// Such clients may try without end, and from many addresses.
class RefusalLog {
 public:
  static constexpr Duration kInterval = std::chrono::minutes(1);
  // Further addresses of the same minute share one entry.
  static constexpr std::size_t kAddressesMax = 1024;

  // `log` may be empty.
  explicit RefusalLog(std::function<void(std::string_view)> log) : log_(std::move(log)) {}

  // Logs "<address>: <what>" unless that was done for the address in the last minute. The next line
  // of the address counts those that were left out.
  void report(std::string_view address, std::string_view what, Instant now);

 private:
  struct Entry {
    Instant until;
    std::size_t num_suppressed = 0;
  };

  const std::function<void(std::string_view)> log_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// The addresses from which a store accepts requests. Its protocol cannot authenticate clients.
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
