#pragma once

// The addresses of one name, which may be those of several hosts (a headless Kubernetes service):
// in which order they are tried. Pure. Which of them hosts the coordinator:
// host/coordinator/hosting.h.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "os/net/address.h"

namespace elastic::host {

// In which order the addresses of a name are dialed: those that did not lead to the job come last,
// so that each of them is tried in turn.
class AddressChoice {
 public:
  using Addresses = std::vector<os::SocketAddress>;

  Addresses order(Addresses found) {
    const auto last_tried = [this](const os::SocketAddress& one) {
      const auto known = dead_ends_.find(one.text());
      return known == dead_ends_.end() ? 0 : known->second;
    };
    std::stable_sort(found.begin(), found.end(),
                     [&](const auto& a, const auto& b) { return last_tried(a) < last_tried(b); });
    last_ = found;
    return found;
  }
  // A process answered at this address ("10.0.0.7:29400"), and does not lead to the job.
  void note_dead_end(const std::string& address) { dead_ends_[address] = ++count_; }
  // Some address of the last order() was not a dead end so far.
  bool has_untried() const {
    return std::any_of(last_.begin(), last_.end(), [this](const os::SocketAddress& one) {
      return !dead_ends_.contains(one.text());
    });
  }
  void forget() { dead_ends_.clear(); }

 private:
  Addresses last_;
  std::uint64_t count_ = 0;
  std::map<std::string, std::uint64_t> dead_ends_;  // when each was tried last
};

}  // namespace elastic::host
