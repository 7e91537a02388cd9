#pragma once

// From which snapshots a round continues (docs/snapshots.md).

#include <cstdint>

namespace elastic {

// Whose state the ranks of a round continue with.
enum class ResumeKind : std::uint8_t {
  kOwn,         // each with its own
  kReplicated,  // some with that of another rank, which is the same
  kMixed,       // with none, because not all ranks have saved theirs as the same on every rank
};

// The snapshots with which all ranks of a round continue.
struct ResumePoint {
  std::int64_t step = -1;   // -1: none
  std::int64_t round = -1;  // in which they were saved, as in ELASTIC_ROUND; -1: unknown
  ResumeKind kind = ResumeKind::kOwn;

  bool operator==(const ResumePoint&) const = default;
};

}  // namespace elastic
