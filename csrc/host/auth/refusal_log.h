#pragma once

// Log lines about clients that are not admitted: one for each address and minute.
//
// Such clients may try without end, and from many addresses. Loop thread only.

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "elastic/time.h"

namespace elastic::host {

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

}  // namespace elastic::host
