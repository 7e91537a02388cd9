#include "host/base/pending_connections.h"

#include <algorithm>
#include <utility>

namespace elastic::host {

std::unique_ptr<PendingConnections::Ticket> PendingConnections::add(
    const std::string& address, std::function<void()> close_it) {
  const auto count = counts_.try_emplace(address, 0).first;
  if (count->second >= per_address_max_) {
    // Of an address that sends nothing all are at the front.
    close(std::find_if(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return entry.address == count; }));
    return add(address, std::move(close_it));  // the count may be gone with the last entry
  }
  ++count->second;
  entries_.push_back({count, std::move(close_it)});
  return std::make_unique<Ticket>(this, std::prev(entries_.end()));
}

bool PendingConnections::close_oldest() {
  if (entries_.empty()) return false;
  close(entries_.begin());
  return true;
}

// The call removes the entry, and with it what is called.
void PendingConnections::close(Entries::iterator entry) {
  const std::function<void()> close_it = std::move(entry->close);
  close_it();
}

void PendingConnections::remove(Entries::iterator entry) {
  if (--entry->address->second == 0) counts_.erase(entry->address);
  entries_.erase(entry);
}

}  // namespace elastic::host
