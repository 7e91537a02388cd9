#pragma once

// What the agent's policy knows of workers that are kept for another round, or started before their
// first one, beside its state: which of them can continue, which have left the round that is over,
// and which have ended while they waited for the next one.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/agent/policy_events.h"
#include "elastic/time.h"

namespace elastic::core {

class KeptWorkers {
 public:
  // With a round.
  void start(std::size_t count) { capable_.assign(count, false); }
  // Before a round. Only workers that can continue in another round wait for one.
  void prepare(std::size_t count) {
    capable_.assign(count, true);
    left_.assign(count, false);
  }
  // They are told to leave the round. `grace`: of the stop that follows if they do not.
  void cut(Duration grace) {
    left_.assign(capable_.size(), false);
    stop_grace_ = grace;
  }
  Duration stop_grace() const { return stop_grace_; }

  void note_capable(int local_rank) { capable_.at(static_cast<std::size_t>(local_rank)) = true; }
  bool are_capable() const { return std::ranges::find(capable_, false) == capable_.end(); }
  // The worker has left the round, or waits for its first one.
  void note_left(int local_rank) { left_.at(static_cast<std::size_t>(local_rank)) = true; }
  // Whether all others have.
  bool is_last(int local_rank) const {
    for (std::size_t i = 0; i < left_.size(); ++i) {
      if (!left_[i] && i != static_cast<std::size_t>(local_rank)) return false;
    }
    return true;
  }

  // It ended while it waited for a round.
  void add_exit(WorkerExited exited) { exits_.push_back(std::move(exited)); }
  std::size_t num_exits() const { return exits_.size(); }
  std::vector<WorkerExited> take_exits() { return std::exchange(exits_, {}); }
  // More is known about a worker that may be one of them. Its exit may be unknown in `event`.
  void update_exit(const WorkerExited& event) {
    for (WorkerExited& exited : exits_) {
      if (exited.local_rank != event.local_rank) continue;
      const WorkerExit exit = exited.exit;
      exited = event;
      exited.exit = exit;
    }
  }

 private:
  std::vector<bool> capable_;  // by local rank: can continue in another round
  std::vector<bool> left_;     // likewise
  Duration stop_grace_{};
  std::vector<WorkerExited> exits_;
};

}  // namespace elastic::core
