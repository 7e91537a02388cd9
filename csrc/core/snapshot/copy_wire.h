#pragma once

// What two nodes send each other about a snapshot: the payloads of frames. docs/protocol.md has the
// order. And the packets that an agent exchanges with its guardian.
//
// Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/held_state.h"

namespace elastic::snapshot {

// So many bytes are sent at once, and so many before the other side has acknowledged some.
inline constexpr std::size_t kCopyPiece = std::size_t{256} << 10;
inline constexpr std::uint64_t kCopyWindow = 8 * kCopyPiece;

enum class CopyKind : std::uint8_t {
  kPut = 1,  // `size` bytes of the snapshot `state` follow; of a node to its buddy, or after a Get
  kReady,    // the reply: send them
  kPiece,    // `data`: the next bytes
  kTaken,    // so many bytes (`size`) have arrived
  kDone,     // they are complete and verified; `text`: or why they are not kept
  kGet,      // send me `state` (rank, world, step, round)
  kMissing,  // the reply: there is none, for the reason in `text`
};

struct CopyMessage {
  CopyKind kind = CopyKind::kPut;
  HeldState state;
  std::uint64_t size = 0;
  std::string text = {};       // at most kCopyTextMax
  std::string_view data = {};  // read: a view of the bytes

  bool operator==(const CopyMessage&) const = default;
};
inline constexpr std::size_t kCopyTextMax = 500;

std::string encode(const CopyMessage& message);
// nullopt: the bytes are no message.
std::optional<CopyMessage> decode_copy(std::string_view bytes);

// ---- Packets of one size on a socket between the agent and its guardian.

enum class AgentPacketKind : std::uint32_t {
  // Of the agent.
  kPin = 1,    // no worker overwrites the snapshots of `step` and of `base`: Pinned, then End
  kAdopt = 2,  // with the descriptor of a snapshot, for the rank's next process: Adopted
  // Of the guardian.
  kPinned = 3,   // with the descriptor of one of them, or of one that is shared
  kEnd = 4,      // `count` were sent
  kAdopted = 5,  // `count`: 1, or 0 if it cannot be kept
};

struct AgentPacket {
  AgentPacketKind kind = AgentPacketKind::kPin;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::uint32_t round = 0;
  std::int64_t step = -1;
  std::uint64_t size = 0;
  std::uint32_t digest = 0;
  std::uint32_t base_round = 0;
  std::int64_t base_step = -1;
  std::int64_t hold = -1;  // of CopyOrder
  std::uint32_t count = 0;
  bool is_replicated = false;
  bool is_shared = false;  // for ranks that have none of their own, and for other nodes
  std::uint16_t reserved = 0;
};

}  // namespace elastic::snapshot
