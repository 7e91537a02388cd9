#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace elastic::host {

// Executes the actions of a pure machine in the order in which the machine gave them. What an
// action causes may be fed to the machine at once: the actions that follow from it wait for those
// before them.
//
// An action must not destroy the owner of the queue, which builds for development detect.
template <typename Action>
class ActionQueue {
 public:
  ActionQueue() = default;
  ActionQueue(const ActionQueue&) = delete;
  ActionQueue& operator=(const ActionQueue&) = delete;
  ~ActionQueue() { ELASTIC_DEBUG_CHECK(!is_executing_); }

  // False: an outer call executes them.
  template <typename Execute>
  bool run(std::vector<Action> actions, const Execute& execute) {
    for (Action& action : actions) actions_.push_back(std::move(action));
    if (std::exchange(is_executing_, true)) return false;
    while (!actions_.empty()) {
      Action action = std::move(actions_.front());
      actions_.pop_front();
      execute(action);
    }
    is_executing_ = false;
    return true;
  }

 private:
  std::deque<Action> actions_;  // not executed yet
  bool is_executing_ = false;
};

}  // namespace elastic::host
