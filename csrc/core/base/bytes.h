#pragma once

// The binary codec of every protocol and file format here: little-endian integers, texts and lists
// after a u32 length; and bytes that copies share.
//
// The reader reports errors by ok(): after the first missing value ok() is false and every value is
// zero or empty, so that a decoder checks once, at its end. Lengths are compared with the remaining
// bytes, and with the caller's limit, before memory is allocated.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace elastic::core {

static_assert(std::endian::native == std::endian::little,
              "every format here is little endian, and integers are copied as they are");

template <typename Integer>
Integer load_integer(const char* bytes) {
  static_assert(std::is_integral_v<Integer>);
  Integer value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename T>
void append_integer(std::string* out, T value) {
  static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out->append(bytes, sizeof value);
}

// Overwrites existing bytes: for example the length of a frame after its content was written.
template <typename Integer>
void store_integer(std::string* out, std::size_t offset, Integer value) {
  std::memcpy(out->data() + offset, &value, sizeof value);
}

// Appends to a string of the caller's.
class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(*out) {}

  template <typename T>
  void integer(T value) {
    append_integer(&out_, value);
  }
  void flag(bool value) { integer(static_cast<std::uint8_t>(value)); }
  void size(std::size_t value) { integer(static_cast<std::uint32_t>(value)); }
  void text(std::string_view value);

 private:
  std::string& out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T integer() {
    T value{};
    copy(&value, sizeof value);
    return value;
  }
  // An enumerator from 0 to `last`.
  template <typename Enum>
  Enum enumerator(Enum last) {
    const auto value = integer<std::underlying_type_t<Enum>>();
    if (value > static_cast<std::underlying_type_t<Enum>>(last)) fail();
    return ok_ ? static_cast<Enum>(value) : Enum{};
  }
  bool flag();
  // A number of elements, each of which takes at least one byte.
  std::size_t size(std::size_t limit);
  std::string text(std::size_t limit);
  // A view of the next bytes; empty if there are fewer.
  std::string_view take(std::size_t count);

  void fail() {
    ok_ = false;
    rest_ = {};
  }
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }
  std::size_t left() const { return rest_.size(); }

 private:
  void copy(void* value, std::size_t count);

  std::string_view rest_;
  bool ok_ = true;
};

// Bytes that do not change: copies share them. For a value of megabytes that passes through several
// machines and queues, each of which keeps a copy.
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
