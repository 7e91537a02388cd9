#pragma once

// Writes and reads small binary records: little endian, texts and lists behind a u32 length.
//
// The reader never fails loudly: after the first value that is not there, ok() is false and every
// value is zero or empty, so that a decoder checks once, at its end. Lengths are compared with what
// is left, and with the caller's limit, before memory is taken for them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace elastic::core {

// Appends to a string of the caller's.
class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(*out) {}

  template <typename T>
  void integer(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);  // little endian, as every host we run on
    out_.append(bytes, sizeof value);
  }
  void flag(bool value) { integer(static_cast<std::uint8_t>(value)); }
  void size(std::size_t value) { integer(static_cast<std::uint32_t>(value)); }
  void text(std::string_view value) {
    size(value.size());
    out_.append(value);
  }

 private:
  std::string& out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T integer() {
    static_assert(std::is_integral_v<T>);
    T value{};
    if (rest_.size() < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  // An enumerator from 0 to `last`.
  template <typename Enum>
  Enum enumerator(Enum last) {
    const auto value = integer<std::underlying_type_t<Enum>>();
    if (value > static_cast<std::underlying_type_t<Enum>>(last)) fail();
    return ok_ ? static_cast<Enum>(value) : Enum{};
  }
  bool flag() {
    const auto value = integer<std::uint8_t>();
    if (value > 1) fail();
    return ok_ && value == 1;
  }
  // A number of elements, each of which takes at least one byte.
  std::size_t size(std::size_t limit) {
    const auto value = integer<std::uint32_t>();
    if (value > limit || value > rest_.size()) fail();
    return ok_ ? value : 0;
  }
  std::string text(std::size_t limit) {
    const std::size_t length = size(limit);
    std::string value(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return value;
  }

  void fail() {
    ok_ = false;
    rest_ = {};
  }
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace elastic::core
