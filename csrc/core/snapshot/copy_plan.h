#pragma once

// Which node copies the snapshots of its ranks to which other node, and of which step: the
// coordinator's part. All nodes of a round copy one step, the newest that all ranks have; when each
// has, the next one. So there is always a step that the nodes that are left have of every rank,
// whichever node is lost, except that two lost nodes can be one and its buddy.
//
// Pure: the same calls in the same order give the same orders. A part of core::Job.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/held_state.h"
#include "core/base/round_events.h"
#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::snapshot {

// Where a node is: nodes of one host, or of one domain, are lost together.
struct CopyPlace {
  std::string host;
  std::string domain;
};

// How far the ranks of the nodes that receive a node's copies are from its own: rotations, so that
// each node receives the copies of as many. The best ones come first: those in which the fewest
// nodes copy within their host, and of these within their domain; of equal ones the shorter one.
std::vector<std::size_t> assign_buddies(const std::vector<CopyPlace>& places);

// A round of so many nodes runs, of which reports may have arrived before.
struct Copied {
  NodeId node;
  CopyReport report;
  std::uint64_t round = 0;  // that runs
  std::size_t nodes = 0;    // of it
};

struct OrderCopy {
  NodeId to;
  CopyOrder order;
};

class CopyPlan {
 public:
  using Event = std::variant<core::round_event::Ended, core::round_event::Left, Copied>;
  using Out = std::vector<OrderCopy>;
  void step(const Event& event, Instant, Out* out) {
    std::visit([&](const auto& one) { on(one, out); }, event);
  }

  // The round, or the job, is over.
  void reset() { *this = {}; }
  // Every node of the round has copied it; step -1: none yet.
  const SavedStep& copied() const { return copied_; }
  // It has changed since the last call.
  bool take_changed();

 private:
  void on(const core::round_event::Ended&, Out*) { reset(); }
  void on(const core::round_event::Left& event, Out*);
  void on(const Copied& event, Out* out);

  static constexpr std::int64_t kMarginMin = 2;
  struct Member {
    NodeId id;
    const CopyReport* report = nullptr;
  };
  std::vector<Member> members() const;
  bool has_copied_all() const;
  void begin_next(Out* out);
  void settle(Out* out);
  CopyOrder order_for(std::size_t rank, const std::vector<Member>& members) const;

  std::map<NodeId, CopyReport> reports_;
  std::uint64_t round_ = 0;
  std::size_t nodes_ = 0;
  std::vector<std::size_t> buddies_;  // of the round, see assign_buddies(); empty: not known yet
  SavedStep target_;                  // that is being copied
  bool is_given_up_ = false;          // a node does not hold it any more
  SavedStep copied_;                  // the last that all nodes have copied
  SavedStep shown_;                   // the same, at the last take_changed()
  SavedStep base_;                    // that is kept until the target is copied
  SavedStep released_;                // after whose copies the base was ordered to be the target
  std::int64_t hold_ = -1;            // that was ordered; -1: none
  std::int64_t margin_ = kMarginMin;  // by which it is ahead of what was reported
};

}  // namespace elastic::snapshot
