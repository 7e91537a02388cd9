#pragma once

// The addresses that a node dials to find the coordinator of its job. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastic::core {

// The order of the addresses of one name, which may belong to several hosts (a headless Kubernetes
// service): addresses that did not lead to the job come last, so that each of them is tried in
// turn. Which of them hosts the coordinator: host/coordinator/hosting.h. `Address` can be copied,
// and text() is "10.0.0.7:29400".
template <typename Address>
class AddressOrder {
 public:
  std::vector<Address> order(std::vector<Address> found) {
    const auto last_tried = [this](const Address& one) {
      const auto known = dead_ends_.find(one.text());
      return known == dead_ends_.end() ? 0 : known->second;
    };
    std::stable_sort(found.begin(), found.end(), [&](const Address& a, const Address& b) {
      return last_tried(a) < last_tried(b);
    });
    last_ = found;
    return found;
  }
  // A process answered at this address, and does not lead to the job.
  void note_dead_end(const std::string& address) { dead_ends_[address] = ++count_; }
  // Some address of the last order() was not a dead end so far.
  bool has_untried() const {
    return std::any_of(last_.begin(), last_.end(),
                       [this](const Address& one) { return !dead_ends_.contains(one.text()); });
  }
  void forget() { dead_ends_.clear(); }

 private:
  std::vector<Address> last_;
  std::uint64_t count_ = 0;
  std::map<std::string, std::uint64_t> dead_ends_;  // when each was tried last
};

// Which addresses a node dials to find its coordinator: the order of a name's addresses, which
// address needs no name look-up, and whether the node may run the coordinator itself.
template <typename Address>
class SessionRoute {
 public:
  explicit SessionRoute(std::size_t endpoints) : orders_(endpoints) {}

  // The next attempt is at this endpoint. Beyond the list: at `moved_to`, the coordinator's
  // address. `recorded`: that in the store that keeps the job's record, which has no endpoint;
  // nullopt: there is no such store. False: nothing is dialed until the record names a coordinator.
  bool begin(std::size_t endpoint, const std::string& moved_to = {},
             const std::optional<std::string>& recorded = {}) {
    address_ = moved_to.empty() ? recorded.value_or("") : moved_to;
    awaits_record_ = recorded && address_.empty();
    if (awaits_record_) return false;
    may_host_ = orders_.size() == 1 || num_asked_ >= orders_.size();
    endpoint_ = endpoint;
    if (is_listed()) num_asked_ = std::max(num_asked_, endpoint + 1);
    return true;
  }
  // ---- Of the attempt that began last.
  bool awaits_record() const { return awaits_record_; }
  // Where the coordinator was said to be; "": the endpoint is tried.
  const std::string& address() const { return address_; }
  bool is_further() const { return is_listed() && endpoint_ > 0; }
  // A coordinator that runs already would have been found at one of the other endpoints.
  bool may_host() const { return may_host_; }
  // Where a coordinator was last reached; it is dialed without a look-up of the endpoint's name.
  std::optional<Address> last_good() const {
    const bool is_of_endpoint = last_good_of_ == endpoint_ || orders_.size() == 1;
    return is_of_endpoint ? last_good_ : std::nullopt;
  }
  std::vector<Address> order(std::vector<Address> found) {
    return is_listed() ? orders_[endpoint_].order(std::move(found)) : found;
  }
  // Something that is no coordinator of the job answered at one of the endpoint's addresses, and
  // the job may be at the next one.
  bool has_untried() const { return is_listed() && orders_[endpoint_].has_untried(); }

  // ---- How it ended.
  void connected(const Address& peer) {
    last_good_ = peer;
    last_good_of_ = endpoint_;
  }
  // `peer`: the last address that was tried; "": none. `is_violation`: something else answered.
  void failed(const std::string& peer, bool is_violation) {
    note_dead_end(peer);
    if (is_violation) last_good_.reset();
  }
  // The process at the other end neither coordinates the job nor knows where its coordinator is.
  void misdirected() {
    if (last_good_) note_dead_end(std::string(last_good_->text()));
  }
  // The process at `peer` has replied as the coordinator. An attempt may have failed there while it
  // was silent.
  void found(const Address& peer) {
    last_good_ = peer;
    for (AddressOrder<Address>& order : orders_) order.forget();
  }

 private:
  bool is_listed() const { return endpoint_ < orders_.size(); }
  // The next attempt begins at another address of the name.
  void note_dead_end(const std::string& address) {
    if (!is_listed() || address.empty()) return;
    orders_[endpoint_].note_dead_end(address);
    if (last_good_ && last_good_->text() == address) last_good_.reset();
  }

  std::vector<AddressOrder<Address>> orders_;  // of each endpoint's addresses
  std::size_t endpoint_ = 0;
  std::string address_;
  bool awaits_record_ = false;
  std::size_t num_asked_ = 0;  // endpoints that were tried, the first one of them once
  bool may_host_ = false;
  std::optional<Address> last_good_;
  std::size_t last_good_of_ = 0;  // the endpoint that has this address
};

}  // namespace elastic::core
