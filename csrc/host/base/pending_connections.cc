#include "host/base/pending_connections.h"

#include <algorithm>
#include <utility>

namespace elastic::host {

std::unique_ptr<PendingConnections::Ticket> PendingConnections::add(
    const std::string& address, std::function<void()> close_it) {
  const auto count = counts_.try_emplace(address, 0).first;
  if (count->second >= per_address_max_) {
    // All connections of an address that sends nothing are near the front.
    close(std::find_if(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return entry.address == count; }));
    return add(address, std::move(close_it));  // again: the count is removed with the last entry
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

// Moves the function out first: the call removes the entry that contains it.
void PendingConnections::close(Entries::iterator entry) {
  const std::function<void()> close_it = std::move(entry->close);
  close_it();
}

void PendingConnections::remove(Entries::iterator entry) {
  if (--entry->address->second == 0) counts_.erase(entry->address);
  entries_.erase(entry);
}

}  // namespace elastic::host
