#pragma once

// The snapshots of a node's ranks, as its agent knows them: what the node joins with, what its
// guardian keeps for a round, and what comes from other nodes before the workers start.
//
// Pure. Not thread-safe. A part of AgentMachine.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/held_state.h"
#include "core/base/node_events.h"
#include "core/snapshot/snapshot_types.h"
#include "elastic/agent.h"
#include "elastic/time.h"

namespace elastic::snapshot {

namespace node_action {
// To the guardian, before the workers of a round are started.
struct Keep {
  KeepRequest request;
};
// From other nodes, before the workers are started: NodeSnapshots::end_fetch() follows.
struct Fetch {
  std::int64_t step = -1;
  std::int32_t world_size = 0;
  std::vector<HeldSource> sources;
};
// A line for the log.
struct Say {
  std::string message;
  bool is_wait = false;  // for what this node waits
};
// The round cannot begin on this node without a state that it cannot get. NodeSnapshots::give_up()
// has the line about it.
struct Abandon {
  std::string why;
};
}  // namespace node_action
using NodeAction =
    std::variant<node_action::Keep, node_action::Fetch, node_action::Say, node_action::Abandon>;

class NodeSnapshots {
 public:
  using Event = std::variant<core::node_event::RoundBegan, core::node_event::WorkerEnded, HeldEvent,
                             CopiesEvent>;
  using Out = std::vector<NodeAction>;
  void step(const Event& event, Instant now, Out*) {
    std::visit([&](const auto& one) { on(one, now); }, event);
  }

  void note_out_of_memory() { is_out_of_memory_ = true; }  // the kernel has killed a worker
  void note_displaced() { is_displaced_ = true; }          // this node joins another job of the id

  // The node joins. `has_processes`: its workers keep their processes, and with them their state.
  void join(bool has_processes, Out* out);
  std::vector<HeldState> holdings(bool has_processes) const;
  const std::string& copies_address() const { return copies_.address; }

  // A round of this node begins. `sources`: of the states that it does not hold.
  void set_sources(std::vector<HeldSource> sources) { sources_ = std::move(sources); }
  // After RoundBegan, for a round whose workers are to be started. plan() comes before the start,
  // fetch() follows it.
  void plan(Out* out);
  void fetch(Out* out);
  bool is_fetching() const { return is_fetching_; }
  // Whether a Fetch was pending.
  bool end_fetch() { return std::exchange(is_fetching_, false); }
  // A state was not to be had: the next join says so. Returns a sentence for the log.
  std::string give_up(const std::string& why);
  void workers_start() { unreached_.clear(); }

  // The newest step of which every rank of this node has a snapshot; -1: none. When it was known.
  std::int64_t saved_step() const { return saved_step_; }
  Instant saved_at() const { return saved_at_; }

 private:
  void on(const core::node_event::RoundBegan& event, Instant) { round_ = event.round; }
  void on(const core::node_event::WorkerEnded& event, Instant);
  void on(const HeldEvent& event, Instant now);
  void on(const CopiesEvent& event, Instant) { copies_ = event; }

  void release(bool has_processes, const std::string& why, Out* out);
  int num_missing() const;

  std::shared_ptr<const RoundInfo> round_;  // null before the first one
  std::vector<HeldState> saved_;            // the snapshots of this node's ranks
  CopiesEvent copies_;                      // and what this node keeps for others
  std::vector<HeldSource> sources_;         // of the last round
  std::vector<HeldState> unreached_;        // what the node could not get since its workers ran
  int missing_ = 0;                         // states of the round, as plan() has found
  bool is_fetching_ = false;
  bool has_saved_ = false;  // a worker has
  bool is_out_of_memory_ = false;
  bool is_displaced_ = false;
  std::int64_t last_step_ = -1;  // that a worker of the last round had reported
  std::int64_t saved_step_ = -1;
  Instant saved_at_;
};

}  // namespace elastic::snapshot
