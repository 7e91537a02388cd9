#pragma once

// What an agent and its guardian tell each other about the snapshots of a node's ranks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/held_state.h"
#include "elastic/rendezvous_types.h"
#include "elastic/resume_point.h"

namespace elastic::snapshot {

// Three for each rank, and as many of an earlier round; and a shared one.
inline constexpr std::size_t kHeldMax = std::size_t{6} * kLocalWorldSizeMax + 1;

// A new round begins, which continues from `point`: of these ranks this snapshot and older ones are
// kept. The memory of the others is used again; that of another world size, or of other ranks, is
// released, but for the shared one.
struct KeepRequest {
  ResumePoint point = {};  // of step -1: no snapshot is kept
  std::int32_t world_size = 0;
  std::int32_t base_rank = 0;
  std::int32_t ranks = 0;
  // That of this rank, saved with this world size, is for the ranks that have none of their own,
  // and for other nodes; -1: none is.
  std::int32_t shared_rank = -1;
  std::int32_t shared_world_size = 0;

  bool operator==(const KeepRequest&) const = default;
};

// The complete and verified snapshots, whenever they have changed, at most once a second; and
// before SweptEvent the last ones of the workers that have ended.
struct HeldEvent {
  std::vector<HeldState> held;  // by rank
  std::uint64_t bytes = 0;      // of memory, for all of them and those that are being written
  std::uint64_t needed = 0;     // of memory, when each rank has at least two
  std::uint64_t left = 0;       // that the node may use beside these
  std::string_view notice;      // why a snapshot is not used; "": nothing to report

  bool operator==(const HeldEvent&) const = default;
};

// The agent passes one end of a socket, on which both exchange AgentPackets (copy_wire.h).
struct ConnectRequest {
  bool operator==(const ConnectRequest&) const = default;
};

// What an agent itself holds and sends to other nodes: pinned snapshots, and copies.
struct CopiesEvent {
  std::vector<HeldState> held;
  std::string address;  // where it does; "": nowhere

  bool operator==(const CopiesEvent&) const = default;
};

}  // namespace elastic::snapshot
