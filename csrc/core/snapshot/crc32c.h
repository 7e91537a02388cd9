#pragma once

// CRC-32C (Castagnoli, RFC 3720): the digest of a snapshot. With the instruction of the CPU if it
// has one, as fast as memory is read; else by tables.
//
// Pure, and without the C++ runtime.

#include <cstddef>
#include <cstdint>

namespace elastic::snapshot {

// The digest of bytes that follow those with the digest `before`; 0 for the first ones. So the
// digest of a sequence does not depend on how it is divided.
std::uint32_t crc32c(std::uint32_t before, const void* bytes, std::size_t size) noexcept;

// The same by tables.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* bytes, std::size_t size) noexcept;

}  // namespace elastic::snapshot
