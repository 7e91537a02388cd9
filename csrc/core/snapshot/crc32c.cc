#include "core/snapshot/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace elastic::snapshot {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[n][byte]: the digest of the byte with n zero bytes behind it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * kPolynomial);
    tables[0][byte] = value;
  }
  for (std::size_t n = 1; n < tables.size(); ++n) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t value = tables[n - 1][byte];
      tables[n][byte] = (value >> 8) ^ tables[0][value & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_word(const unsigned char* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t value,
                                                               const unsigned char* bytes,
                                                               std::size_t size) {
  std::uint64_t wide = value;
  for (; size >= 8; bytes += 8, size -= 8) wide = _mm_crc32_u64(wide, load_word(bytes));
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++bytes, --size) narrow = _mm_crc32_u8(narrow, *bytes);
  return narrow;
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__ARM_FEATURE_CRC32)
std::uint32_t by_instruction(std::uint32_t value, const unsigned char* bytes, std::size_t size) {
  for (; size >= 8; bytes += 8, size -= 8) value = __crc32cd(value, load_word(bytes));
  for (; size > 0; ++bytes, --size) value = __crc32cb(value, *bytes);
  return value;
}
bool has_instruction() { return true; }
#else
std::uint32_t by_instruction(std::uint32_t value, const unsigned char*, std::size_t) {
  return value;
}
bool has_instruction() { return false; }
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::uint32_t before, const void* bytes, std::size_t size) noexcept {
  const auto* at = static_cast<const unsigned char*>(bytes);
  std::uint32_t value = ~before;
  for (; size >= 8; at += 8, size -= 8) {
    std::uint64_t word = 0;  // the first byte is the lowest one, in either byte order
    for (int i = 7; i >= 0; --i) word = (word << 8) | at[i];
    word ^= value;
    value = 0;
    for (std::size_t i = 0; i < 8; ++i) value ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (; size > 0; ++at, --size) value = (value >> 8) ^ kTables[0][(value ^ *at) & 0xFF];
  return ~value;
}

std::uint32_t crc32c(std::uint32_t before, const void* bytes, std::size_t size) noexcept {
  if (!has_instruction()) return crc32c_by_table(before, bytes, size);
  return ~by_instruction(~before, static_cast<const unsigned char*>(bytes), size);
}

}  // namespace elastic::snapshot
