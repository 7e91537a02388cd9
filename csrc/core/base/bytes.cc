#include "core/base/bytes.h"

namespace elastic::core {

void ByteWriter::text(std::string_view value) {
  size(value.size());
  out_.append(value);
}

bool ByteReader::flag() {
  const auto value = integer<std::uint8_t>();
  if (value > 1) fail();
  return ok_ && value == 1;
}

std::size_t ByteReader::size(std::size_t limit) {
  const auto value = integer<std::uint32_t>();
  if (value > limit || value > rest_.size()) fail();
  return ok_ ? value : 0;
}

std::string ByteReader::text(std::size_t limit) { return std::string(take(size(limit))); }

std::string_view ByteReader::take(std::size_t count) {
  if (rest_.size() < count) fail();
  const std::string_view bytes = rest_.substr(0, ok_ ? count : 0);
  rest_.remove_prefix(bytes.size());
  return bytes;
}

// Leaves the value as it is if there are fewer bytes.
void ByteReader::copy(void* value, std::size_t count) {
  const std::string_view bytes = take(count);
  if (ok_) std::memcpy(value, bytes.data(), count);
}

}  // namespace elastic::core
