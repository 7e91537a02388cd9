#pragma once

// The newest snapshot that every rank of a round has, from what its nodes report.
//
// Pure. A part of core::Job.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <variant>

#include "core/base/held_state.h"
#include "core/base/round_events.h"
#include "elastic/observer.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::snapshot {

// Every rank of the node has a snapshot of this step of the current round.
struct Saved {
  NodeId node;
  std::int64_t step = -1;
  Instant at;
  MemoryUse memory = {};  // all zero: unknown
};

class SnapshotStatus {
 public:
  using Event = std::variant<core::round_event::Ended, core::round_event::Left, Saved>;
  void step(const Event& event, Instant) {
    std::visit([this](const auto& one) { on(one); }, event);
  }

  // Another round, or another job of the id, begins.
  void reset() { *this = {}; }
  // `nodes`: of the round; nullopt: one of them has none.
  std::optional<ObservedSave> newest(std::size_t nodes, Instant now) const {
    if (saved_.empty() || saved_.size() < nodes) return std::nullopt;
    const auto oldest = std::min_element(
        saved_.begin(), saved_.end(),
        [](const auto& a, const auto& b) { return a.second.step < b.second.step; });
    return ObservedSave{
        .step = oldest->second.step, .age = now - oldest->second.at, .memory = memory()};
  }

 private:
  void on(const core::round_event::Ended&) { reset(); }
  void on(const core::round_event::Left& event) {
    saved_.erase(event.node);
    memory_.erase(event.node);
  }
  void on(const Saved& event) {
    if (Save& known = saved_[event.node]; known.step != event.step) known = {event.step, event.at};
    if (event.memory != MemoryUse{}) memory_[event.node] = event.memory;
  }

  struct Save {
    std::int64_t step = -1;
    Instant at;
  };

  std::optional<ObservedMemory> memory() const {
    if (memory_.empty()) return std::nullopt;
    ObservedMemory found;
    for (const auto& [node, use] : memory_) {
      found.own += use.own;
      found.copies += use.copies;
    }
    const auto tightest = std::min_element(
        memory_.begin(), memory_.end(),
        [](const auto& a, const auto& b) { return left(a.second) < left(b.second); });
    found.node = tightest->first;
    found.needed = tightest->second.needed;
    found.limit = tightest->second.limit;
    return found;
  }
  // Negative: too little.
  static std::int64_t left(const MemoryUse& use) {
    return static_cast<std::int64_t>(use.limit) - static_cast<std::int64_t>(use.needed);
  }

  std::map<NodeId, Save> saved_;
  std::map<NodeId, MemoryUse> memory_;
};

}  // namespace elastic::snapshot
