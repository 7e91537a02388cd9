#include "core/snapshot/format.h"

#include <cstring>

#include "core/snapshot/crc32c.h"

namespace elastic::snapshot {
namespace {

static_assert(sizeof(Header) == 56 && sizeof(Entry) == 24);

// Whether an element has all exponent bits, and a bit of its fraction: it is above infinity
// without its sign. Without a branch for each, so that compilers use wide registers.
template <typename Word>
bool has_above(const unsigned char* bytes, std::size_t size, Word mask, Word infinity) {
  constexpr std::size_t kBlock = 512;
  std::size_t left = size / sizeof(Word);
  while (left > 0) {
    const std::size_t count = left < kBlock ? left : kBlock;
    Word words[kBlock];
    std::memcpy(words, bytes, count * sizeof(Word));
    unsigned found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      found |= static_cast<unsigned>(static_cast<Word>(words[i] & mask) > infinity);
    }
    if (found != 0) return true;
    bytes += count * sizeof(Word);
    left -= count;
  }
  return false;
}

}  // namespace

std::uint64_t lay_out(Entry* entries, std::uint64_t parts) noexcept {
  if (parts > kPartsMax) return 0;
  std::uint64_t end = data_offset(static_cast<std::uint32_t>(parts));
  for (std::uint64_t i = 0; i < parts; ++i) {
    if (entries[i].bytes > kBytesMax) return 0;
    entries[i].offset = round_up(end, kAlignment);
    end = entries[i].offset + entries[i].bytes;
    if (end > kBytesMax) return 0;
  }
  return end;
}

bool read_header(const void* bytes, std::uint64_t file_size, Header* out) noexcept {
  if (file_size < kPage) return false;
  std::memcpy(out, bytes, sizeof *out);
  return out->magic == kMagic && out->version == kVersion && (out->flags & ~kReplicated) == 0 &&
         (out->state == State::kWriting || out->state == State::kComplete) && out->step >= 0 &&
         out->rank < out->world && out->parts <= kPartsMax && out->size <= file_size &&
         data_offset(out->parts) <= out->size;
}

bool check_entry(const Entry& entry, const Header& header, std::uint64_t* end) noexcept {
  const bool is_sound = static_cast<std::uint32_t>(entry.kind) < kKinds && entry.reserved == 0 &&
                        entry.offset == round_up(*end, kAlignment) && entry.offset <= header.size &&
                        entry.bytes <= header.size - entry.offset;
  *end = entry.offset + entry.bytes;
  return is_sound;
}

bool check_index(const Entry* entries, const Header& header) noexcept {
  std::uint64_t end = data_offset(header.parts);
  for (std::uint32_t i = 0; i < header.parts; ++i) {
    if (!check_entry(entries[i], header, &end)) return false;
  }
  return end == header.size;
}

std::uint32_t header_digest(const Header& header) noexcept {
  return crc32c(0, &header, sizeof header);
}

std::uint32_t digest_of(const Header& header, const void* bytes) noexcept {
  return crc32c(header_digest(header), static_cast<const unsigned char*>(bytes) + kPage,
                static_cast<std::size_t>(header.size - kPage));
}

const Entry* open_snapshot(const void* bytes, std::uint64_t file_size, std::uint32_t digest,
                           Header* header) noexcept {
  if (!read_header(bytes, file_size, header) || header->state != State::kComplete ||
      digest_of(*header, bytes) != digest) {
    return nullptr;
  }
  const auto* entries = static_cast<const Entry*>(
      static_cast<const void*>(static_cast<const unsigned char*>(bytes) + kPage));
  return check_index(entries, *header) ? entries : nullptr;
}

bool has_nan(Kind kind, const void* bytes, std::size_t size) noexcept {
  const auto* at = static_cast<const unsigned char*>(bytes);
  switch (kind) {
    case Kind::kBytes: return false;
    case Kind::kFloat16: return has_above<std::uint16_t>(at, size, 0x7FFF, 0x7C00);
    case Kind::kBFloat16: return has_above<std::uint16_t>(at, size, 0x7FFF, 0x7F80);
    case Kind::kFloat32: return has_above<std::uint32_t>(at, size, 0x7FFFFFFF, 0x7F800000);
    case Kind::kFloat64:
      return has_above<std::uint64_t>(at, size, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000);
  }
  return false;
}

}  // namespace elastic::snapshot
