#include "host/base/admission.h"

#include <algorithm>
#include <utility>

namespace elastic::host {

std::unique_ptr<PendingConnections::Ticket> PendingConnections::add(
    const std::string& address, std::function<void()> close_it) {
  while (entries_.size() >= total_max_) close(entries_.begin());
  for (auto found = addresses_.find(address);
       found != addresses_.end() && found->second.size() >= per_address_max_;
       found = addresses_.find(address)) {
    close(found->second.front());
  }
  const auto of_address = addresses_.try_emplace(address).first;
  entries_.push_back({of_address, {}, std::move(close_it), nullptr});
  entries_.back().place =
      of_address->second.insert(of_address->second.end(), std::prev(entries_.end()));
  auto ticket = std::make_unique<Ticket>(this, std::prev(entries_.end()));
  entries_.back().ticket = ticket.get();
  return ticket;
}

bool PendingConnections::close_oldest() {
  if (entries_.empty()) return false;
  close(entries_.begin());
  return true;
}

// Removes the entry before the call: whatever the connection does or leaves undone, it is not
// found, counted or closed again.
void PendingConnections::close(Entries::iterator entry) {
  const std::function<void()> close_it = std::move(entry->close);
  entry->ticket->owner_ = nullptr;
  remove(entry);
  close_it();
}

void PendingConnections::remove(Entries::iterator entry) {
  entry->address->second.erase(entry->place);
  if (entry->address->second.empty()) addresses_.erase(entry->address);
  entries_.erase(entry);
}

void RefusalLog::report(std::string_view address, std::string_view what, Instant now) {
  if (!log_) return;
  auto found = entries_.find(address);
  if (found == entries_.end()) {
    if (entries_.size() >= kAddressesMax) {
      std::erase_if(entries_, [now](const auto& one) { return one.second.until <= now; });
    }
    const bool is_full = entries_.size() >= kAddressesMax;
    found = entries_.try_emplace(std::string(is_full ? "further addresses" : address)).first;
  }
  Entry& entry = found->second;
  if (now < entry.until) {
    ++entry.num_suppressed;
    return;
  }
  std::string line = found->first + ": " + std::string(what);
  if (const std::size_t count = std::exchange(entry.num_suppressed, 0); count > 0) {
    line += " (and " + std::to_string(count) + " earlier attempts)";
  }
  entry.until = add_saturating(now, kInterval);
  log_(line);
}

}  // namespace elastic::host
