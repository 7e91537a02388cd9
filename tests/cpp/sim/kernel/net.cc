#include "sim/kernel/net.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace elastic::test {
namespace {
int index(Side side) { return static_cast<int>(side); }
}  // namespace

const char* name_of(const core::RendezvousEvent& event) {
  static constexpr const char* kNames[] = {
      "Join",       "Resume", "Heartbeat",    "Failed",       "Gone", "Done",
      "Leave",      "Close",  "SessionLost",  "ProcessEnded", "Tick", "ClockGap",
      "HoldGrowth", "Grow",   "HostsChanged", "HostBad"};
  static_assert(std::size(kNames) == std::variant_size_v<core::RendezvousEvent>);
  return kNames[event.index()];
}

const char* name_of(const core::RendezvousAction& action) {
  static constexpr const char* kNames[] = {"Round",   "Restart",  "Waiting", "Resumed",  "Evicted",
                                           "Refused", "TimedOut", "Closed",  "RoundOver"};
  static_assert(std::size(kNames) == std::variant_size_v<core::RendezvousAction>);
  return kNames[action.index()];
}

void SimPath::unblock() {
  is_blocked[0] = is_blocked[1] = false;
  std::vector<std::shared_ptr<SimLink>> held;
  for (SimLink* link : links) {
    if (auto one = link->weak_from_this().lock()) held.push_back(std::move(one));
  }
  for (const auto& link : held) {
    link->unacknowledged_since_[0] = link->unacknowledged_since_[1] = Instant::max();
    link->deliver(Side::kAgent);
    link->deliver(Side::kServer);
  }
}

SimLink::SimLink(SimClock* clock, Dice* dice, std::shared_ptr<SimPath> path)
    : clock_(clock), dice_(dice), path_(std::move(path)) {
  path_->links.insert(this);
}

SimLink::~SimLink() { path_->links.erase(this); }

void SimLink::send(Side from, Message message) {
  if (!is_closed_[index(from)]) post(from, std::move(message));
}

void SimLink::post(Side from, Message message) {
  const Instant due = std::max(last_due_[index(from)],
                               clock_->now() + dice_->between(path_->delay_min, path_->delay_max));
  last_due_[index(from)] = due;
  pending_[index(from)].push_back({std::move(message), clock_->now()});
  clock_->at(due, [self = shared_from_this(), from] {
    for (Pending& one : self->pending_[index(from)]) {
      if (one.is_due) continue;
      one.is_due = true;
      break;
    }
    self->deliver(from);
  });
}

void SimLink::deliver(Side from) {
  std::deque<Pending>& queue = pending_[index(from)];
  while (!queue.empty() && queue.front().is_due && !path_->is_blocked[index(from)] &&
         !has_vanished_) {
    const Message message = std::move(queue.front().message);
    const Instant sent = queue.front().sent;
    queue.pop_front();
    const Side to = other(from);
    // The acknowledgement takes the way back.
    Instant& since = unacknowledged_since_[index(from)];
    since = path_->is_blocked[index(to)] ? std::min(since, sent) : Instant::max();
    if (is_closed_[index(to)]) {
      if (!std::holds_alternative<Fin>(message)) post(to, Fin{});  // a reset
      continue;
    }
    if (std::holds_alternative<Fin>(message)) {
      is_closed_[index(to)] = true;
      if (on_closed[index(to)]) on_closed[index(to)]();
    } else if (on_message[index(to)]) {
      on_message[index(to)](message);
    }
  }
}

void SimLink::close(Side from) {
  if (is_closed_[index(from)]) return;
  send(from, Fin{});
  is_closed_[index(from)] = true;
}

void SimLink::cut() {
  for (const Side side : {Side::kAgent, Side::kServer}) {
    pending_[index(side)].clear();
    post(side, Fin{});
  }
}

Duration SimLink::unacknowledged(Side from) const {
  const std::deque<Pending>& queue = pending_[index(from)];
  Instant since = unacknowledged_since_[index(from)];
  if (!queue.empty()) since = std::min(since, queue.front().sent);
  return clock_->now() - std::min(since, clock_->now());
}

}  // namespace elastic::test
