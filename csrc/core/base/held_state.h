#pragma once

// What nodes hold of the snapshots of ranks: in a join, in the reports about copies, and in the
// orders to make them.

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace elastic {

// The state of a rank after a step, which a node holds and a further round can continue from.
// States of one step that were saved in different rounds are not of one training: a round may have
// begun again at an earlier step.
struct HeldState {
  std::int32_t rank = 0;  // -1: this node could not get the state of that step
  std::int32_t world_size = 0;
  std::int64_t step = 0;
  std::uint32_t round = 0;  // in which it was saved, as in ELASTIC_ROUND
  std::uint32_t digest = 0;
  bool is_copy = false;        // the node sends it to others
  bool is_replicated = false;  // saved as the same on every rank: any rank may continue with it

  bool operator==(const HeldState&) const = default;
};

// A node reports it in place of what it holds while its workers keep their processes, and with them
// their state: no round with this node continues from a snapshot.
inline constexpr HeldState kKeepsProcesses{.rank = -1, .step = -1};

// Where a node gets the state of one of its ranks; or of another rank, for all of its ranks that
// have none of their own.
struct HeldSource {
  std::int32_t rank = 0;
  std::uint32_t round = 0;      // in which it was saved
  std::string address = {};     // of the node that has it: host:port; "": this node's guardian
  bool is_shared = false;       // by ranks that have none of their own
  std::int32_t world_size = 0;  // in which it was saved, if it is shared

  bool operator==(const HeldSource&) const = default;
};

// What one node of a new round brings to it.
struct NodeHoldings {
  int base_rank = 0;
  int local_world_size = 0;
  const std::vector<HeldState>* held = nullptr;
  const std::string* address = nullptr;  // where it sends copies; null or "": nowhere
};

namespace snapshot {

// One step of a training.
struct SavedStep {
  std::int64_t step = -1;  // -1: none
  std::uint32_t round = 0;

  auto operator<=>(const SavedStep&) const = default;
};

// What a node uses and may use of its memory for snapshots, in bytes.
struct MemoryUse {
  std::uint64_t own = 0;     // for those of its ranks
  std::uint64_t copies = 0;  // for those of other nodes
  std::uint64_t needed = 0;  // for both, when there are two of each
  std::uint64_t limit = 0;   // for both; 0: unknown

  bool operator==(const MemoryUse&) const = default;
};

// What a node reports about the snapshots of its ranks and their copies, when it has changed.
struct CopyReport {
  std::uint64_t round = 0;
  std::int32_t group_rank = 0;
  std::string address = {};            // where it receives copies
  std::string host = {};               // nodes of one host, or of one domain, are lost together
  std::string domain = {};             // --topology
  std::vector<SavedStep> own = {};     // that all of its ranks have
  std::vector<SavedStep> copied = {};  // of these, those that its buddy has
  SavedStep target = {};               // of the last order
  std::int32_t buddies = 1;            // how many nodes are to have copies of this one's

  bool operator==(const CopyReport&) const = default;
};

struct Buddy {
  std::string address = {};  // where it receives copies
  std::string node = {};     // its host, for messages

  bool operator==(const Buddy&) const = default;
};

// The node copies its ranks' snapshots of `step` to these nodes. Those of `base` are kept as well,
// here and there: every node has copied them.
struct CopyOrder {
  std::uint64_t round = 0;
  SavedStep step;
  SavedStep base;
  Buddy buddy = {};
  std::vector<Buddy> more = {};  // further ones
  // Each rank keeps the first snapshot that it saves after so many steps or more; -1: none.
  std::int64_t hold = -1;

  bool operator==(const CopyOrder&) const = default;
};

}  // namespace snapshot
}  // namespace elastic
