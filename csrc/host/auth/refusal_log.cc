#include "host/auth/refusal_log.h"

#include <utility>

namespace elastic::host {

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
