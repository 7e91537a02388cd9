#pragma once

// The newest snapshot that every rank of a round has, from what its nodes report.
//
// Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "elastic/observer.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::snapshot {

class SnapshotStatus {
 public:
  // Another round begins.
  void clear() { saved_.clear(); }
  void note(const NodeId& node, std::int64_t step, Instant at) {
    if (saved_[node].step != step) saved_[node] = {step, at};
  }
  void forget(const NodeId& node) { saved_.erase(node); }
  // `nodes`: of the round; nullopt: one of them has none.
  std::optional<ObservedSave> newest(std::size_t nodes, Instant now) const {
    if (saved_.empty() || saved_.size() < nodes) return std::nullopt;
    const auto oldest = std::min_element(
        saved_.begin(), saved_.end(),
        [](const auto& a, const auto& b) { return a.second.step < b.second.step; });
    return ObservedSave{oldest->second.step, now - oldest->second.at};
  }

 private:
  struct Save {
    std::int64_t step = -1;
    Instant at;
  };
  std::map<NodeId, Save> saved_;
};

}  // namespace elastic::snapshot
