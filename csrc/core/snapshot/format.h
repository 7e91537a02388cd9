#pragma once

// The layout of a snapshot: the state of one rank after one step, in one file of memory.
//
//   0     Header; behind its fields the word of the guardian's verdict
//   4096  the index: an Entry for each part
//   then  the parts, the first at a multiple of 4096, each at a multiple of 64
//
// A worker writes it in this order: the header with kWriting, index and parts, kComplete. A process
// that is killed meanwhile leaves kWriting. The digest is made of what is read back: the header as
// it was when the snapshot was complete, and all bytes from the index to the end. It is kept
// outside of the file, by the guardian.
//
// The file may hold anything: a process that is about to crash can have written to it. Nothing is
// read without these checks. Numbers have the byte order of the host, which no snapshot leaves.
//
// Pure, and without the C++ runtime.

#include <cstddef>
#include <cstdint>

namespace elastic::snapshot {

inline constexpr std::uint64_t kMagic = 0x746F687370616E73;  // "snapshot"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kAlignment = 64;
inline constexpr std::uint32_t kPartsMax = 1 << 20;
inline constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 46;

enum class State : std::uint32_t { kEmpty = 0, kWriting = 1, kComplete = 2 };

// Flags of a header. A version that does not know one takes the snapshot for none.
inline constexpr std::uint16_t kReplicated = 1;  // the same on every rank

struct Header {
  std::uint64_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t flags = 0;
  State state = State::kEmpty;
  std::uint64_t sequence = 0;  // counts what this process and its predecessors have written
  std::int64_t step = -1;
  std::uint32_t world = 0;
  std::uint32_t rank = 0;
  std::uint32_t parts = 0;
  std::uint32_t round = 0;  // in which it was saved
  std::uint64_t size = 0;   // of the snapshot; the file may be larger

  bool operator==(const Header&) const = default;
};

// Where the guardian writes the sequence of a snapshot that it has found to be bad, in the header's
// page. Not part of the digest.
inline constexpr std::uint64_t kVerdictOffset = 2048;
// Where the guardian writes the sequence of a snapshot that is not to be overwritten; 0: none.
inline constexpr std::uint64_t kPinOffset = 2056;
// Where the guardian writes the step behind which the first snapshot is pinned by the worker
// itself, plus one; 0: none. The worker writes 0 when it has done so.
inline constexpr std::uint64_t kHoldOffset = 2064;

// How the bytes of a part are looked at: a snapshot with a number that is not one is bad.
enum class Kind : std::uint32_t { kBytes = 0, kFloat16, kBFloat16, kFloat32, kFloat64 };
inline constexpr std::uint32_t kKinds = 5;

struct Entry {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Kind kind = Kind::kBytes;
  std::uint32_t reserved = 0;

  bool operator==(const Entry&) const = default;
};

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Where the first part begins.
constexpr std::uint64_t data_offset(std::uint32_t parts) {
  return round_up(kPage + std::uint64_t{parts} * sizeof(Entry), kPage);
}

// Sets the offsets of `parts` entries from their sizes. Returns the size of the snapshot; 0: too
// many parts, or too large.
std::uint64_t lay_out(Entry* entries, std::uint64_t parts) noexcept;

// False: the bytes at the beginning of a file of `file_size` are no header of a snapshot, which
// may be unfinished.
bool read_header(const void* bytes, std::uint64_t file_size, Header* out) noexcept;

// Whether the entry may follow one that ends at `end` (data_offset() for the first), in a snapshot
// of this header. Moves `end`.
bool check_entry(const Entry& entry, const Header& header, std::uint64_t* end) noexcept;
// The same for all of them: they end where the snapshot does.
bool check_index(const Entry* entries, const Header& header) noexcept;

// The digest of the header's fields, with which that of the snapshot begins.
std::uint32_t header_digest(const Header& header) noexcept;
// The digest of a whole snapshot, whose size is the header's.
std::uint32_t digest_of(const Header& header, const void* bytes) noexcept;

// The index of a complete snapshot with this digest; null: these bytes, a whole file, are none.
const Entry* open_snapshot(const void* bytes, std::uint64_t file_size, std::uint32_t digest,
                           Header* header) noexcept;

// Whether a number of this kind in the bytes, which begin with a whole one, is not a number.
// Infinities are numbers: masks contain them.
bool has_nan(Kind kind, const void* bytes, std::size_t size) noexcept;

}  // namespace elastic::snapshot
