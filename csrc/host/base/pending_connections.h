#pragma once

// The connections of a listener that have not sent a handshake: their number for each address, and
// their order by age.
//
// Clients that connect and send nothing must not block other clients. So the oldest connection of
// an address that has too many of them is closed for a new one; if descriptors are short, the
// oldest one of any address. Loop thread only.

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

namespace elastic::host {

class PendingConnections {
 public:
  // REQUIRES: per_address_max > 0
  explicit PendingConnections(std::size_t per_address_max) : per_address_max_(per_address_max) {}
  PendingConnections(const PendingConnections&) = delete;
  PendingConnections& operator=(const PendingConnections&) = delete;

  // A connection is pending while it has its ticket. This object outlives the ticket.
  class Ticket;

  // `close`: closes the connection and destroys its ticket.
  std::unique_ptr<Ticket> add(const std::string& address, std::function<void()> close);
  // Closes the oldest of all. False: there is none.
  bool close_oldest();
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::map<std::string, std::size_t>::iterator address;
    std::function<void()> close;
  };
  using Entries = std::list<Entry>;

  void remove(Entries::iterator entry);
  static void close(Entries::iterator entry);

  const std::size_t per_address_max_;
  Entries entries_;  // oldest first
  std::map<std::string, std::size_t> counts_;
};

class PendingConnections::Ticket {
 public:
  Ticket(PendingConnections* owner, Entries::iterator entry) : owner_(owner), entry_(entry) {}
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() { owner_->remove(entry_); }

 private:
  PendingConnections* const owner_;
  const Entries::iterator entry_;
};

}  // namespace elastic::host
