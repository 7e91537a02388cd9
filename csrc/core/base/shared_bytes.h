#pragma once

// Bytes that do not change: copies share them. For a value of megabytes that passes through several
// machines and queues, each of which keeps a copy.

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace elastic::core {

class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::string bytes) : bytes_(std::make_shared<const std::string>(std::move(bytes))) {}
  SharedBytes(const char* bytes) : SharedBytes(std::string(bytes)) {}

  std::string_view view() const { return bytes_ == nullptr ? std::string_view() : *bytes_; }
  operator std::string_view() const { return view(); }
  std::size_t size() const { return view().size(); }
  bool empty() const { return view().empty(); }

  bool operator==(const SharedBytes& other) const {
    return bytes_ == other.bytes_ || view() == other.view();
  }

 private:
  std::shared_ptr<const std::string> bytes_;  // null: none
};

}  // namespace elastic::core
