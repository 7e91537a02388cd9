#include "host/store/client_arguments.h"

#include <algorithm>

namespace elastic::host {
namespace {

constexpr StoreLimits kLimits;

std::string quoted(std::string_view key) {
  constexpr std::size_t kShownMax = 80;
  std::string text = "'";
  text += key.substr(0, kShownMax);
  text += key.size() > kShownMax ? "...'" : "'";
  return text;
}

Status too_large(const std::string& what, std::size_t size, std::size_t limit) {
  return {StatusCode::kInvalidArgument, what + " has " + std::to_string(size) + " bytes: at most " +
                                            std::to_string(limit) + " are allowed"};
}

Status check_key(std::string_view key) {
  if (key.size() < kLimits.key_bytes_max) return {};  // one byte is reserved for the "/"
  return too_large("key " + quoted(key), key.size(), kLimits.key_bytes_max - 1);
}

Status check_value(std::string_view value) {
  if (value.size() <= kLimits.value_bytes_max) return {};
  return too_large("the value", value.size(), kLimits.value_bytes_max);
}

Status check_count(std::size_t count) {
  if (count <= kLimits.item_count_max) return {};
  return {StatusCode::kInvalidArgument, std::to_string(count) + " keys in one call: at most " +
                                            std::to_string(kLimits.item_count_max) +
                                            " are allowed"};
}

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kListHeaderBytes = 1 + kLengthBytes;

Status check_request(std::size_t size) {
  if (size <= kLimits.frame_bytes_max) return {};
  return too_large("the request", size, kLimits.frame_bytes_max);
}

}  // namespace

std::string wire_key(std::string_view key) {
  std::string name;
  name.reserve(key.size() + 1);
  name += '/';
  name += key;
  return name;
}

void append_keys_request(std::string* request, wire::Opcode opcode, const StoreKeys& keys) {
  wire::append_list_header(request, opcode, keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) wire::append_bytes(request, wire_key(keys[i]));
}

std::string describe(const StoreKeys& keys) {
  constexpr std::size_t kShownMax = 4;
  if (keys.size() == 0) return "";
  std::string text = keys.size() == 1 ? "key " : "keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), kShownMax); ++i) {
    if (i > 0) text += ", ";
    text += quoted(keys[i]);
  }
  if (keys.size() > kShownMax) text += " and " + std::to_string(keys.size() - kShownMax) + " more";
  return text;
}

Status check_bounds(const StoreKeys& keys) {
  Status status = check_count(keys.size());
  std::size_t size = kListHeaderBytes;
  for (std::size_t i = 0; status.ok() && i < keys.size(); ++i) {
    status = check_key(keys[i]);
    size += kLengthBytes + 1 + keys[i].size();
  }
  return status.ok() ? check_request(size) : status;
}

Status check_bounds(std::string_view key, std::string_view value, std::string_view expected) {
  Status status = check_key(key);
  if (status.ok()) status = check_value(value);
  if (status.ok()) status = check_value(expected);
  return status;
}

Status check_bounds(StoreItems items) {
  Status status = check_count(items.size());
  std::size_t size = kListHeaderBytes;
  for (std::size_t i = 0; status.ok() && i < items.size(); ++i) {
    status = check_bounds(items[i].first, items[i].second);
    size += 2 * kLengthBytes + 1 + items[i].first.size() + items[i].second.size();
  }
  return status.ok() ? check_request(size) : status;
}

}  // namespace elastic::host
