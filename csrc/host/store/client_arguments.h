#pragma once

// The arguments of a StoreClient call: its keys, their names on the wire and in messages, and the
// protocol's limits. Pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/store/wire.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::host {

// A view of zero, one or many keys; the strings outlive it.
class StoreKeys {
 public:
  StoreKeys() = default;
  explicit StoreKeys(std::string_view one) : one_(one), size_(1) {}
  explicit StoreKeys(std::span<const std::string> many) : many_(many.data()), size_(many.size()) {}

  std::size_t size() const { return size_; }
  std::string_view operator[](std::size_t index) const {
    return many_ != nullptr ? std::string_view(many_[index]) : one_;
  }

 private:
  std::string_view one_;
  const std::string* many_ = nullptr;
  std::size_t size_ = 0;
};

using StoreItems = std::span<const std::pair<std::string, std::string>>;

// The name on the wire: PyTorch's client prefixes each key with "/".
std::string wire_key(std::string_view key);

// Appends a request for a list of keys: CHECK, WAIT or MULTI_GET.
void append_keys_request(std::string* request, wire::Opcode opcode, const StoreKeys& keys);

// "key 'a'", "keys 'a', 'b' and 7 more", or "" for none; long keys are shortened.
std::string describe(const StoreKeys& keys);

// kInvalidArgument for arguments over the protocol's limits. They are not sent, because a server
// would close the connection without giving a reason.
Status check_bounds(const StoreKeys& keys);
Status check_bounds(std::string_view key, std::string_view value, std::string_view expected = {});
Status check_bounds(StoreItems items);

}  // namespace elastic::host
