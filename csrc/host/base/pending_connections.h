#pragma once

// The connections of a listener whose peers have not identified themselves: how many each address
// has, and which is the oldest.
//
// A peer that connects and sends nothing must not keep others out. So an address that has too many
// of these connections loses its oldest one to a newer one, as any address does when descriptors
// are short. Loop thread only.

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

  // A connection is pending while it has its ticket. The owner outlives it.
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
  Entries entries_;  // the oldest first
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
