#pragma once

// The messages on the socket on which a worker and the guardian exchange snapshots: packets of one
// size. The worker makes the socket pair, and sends one end over its channel (kSnapshots).
//
// Pure, and without the C++ runtime.

#include <cstdint>

namespace elastic::worker {

enum class SnapshotKind : std::uint32_t {
  // Of the worker.
  kHello = 1,     // its rank and world size: Slots is the reply
  kOffer = 2,     // with the descriptor of a file of `bytes` for `slot`: Accepted or Refused
  kComplete = 3,  // a snapshot in `slot` is complete
  kDamaged = 4,   // the snapshot in `slot` is not what its digest says
  // Of the guardian.
  kSlots = 5,  // the files that it has kept, as descriptors in the order of the set bits of `slot`;
               // bit kSharedSlot: one that ranks without their own share, and never write to
  kAccepted = 6,  // it keeps the file
  kRefused = 7,   // it does not, for the reason in `text`
};

struct SnapshotPacket {
  SnapshotKind kind = SnapshotKind::kHello;
  std::uint32_t slot = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  std::int64_t step = -1;  // kSlots: from which the round continues; -1: from none
  std::uint64_t bytes = 0;
  std::uint32_t from = 0;    // kSlots: the slot that has this step
  std::uint32_t digest = 0;  // kSlots: of that snapshot
  char text[196] = {};
  std::uint32_t is_own = 1;  // kSlots: each rank of the round continues from its own
};

// Two, and a third while one is being copied to another node and the one before must be kept.
inline constexpr int kSlots = 3;
inline constexpr std::uint32_t kSharedSlot = kSlots;

}  // namespace elastic::worker
