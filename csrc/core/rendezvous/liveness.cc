// Theory of operation
//
// One entry for each node: when it was last heard of and, once its session was closed, until when
// it may come back. A beat changes one entry. The deadline that the owner sleeps to is a lower
// bound kept beside the table; when it is reached the whole table is looked at once and the bound
// computed anew. With beats several times within node_timeout this costs one look at the table in
// each node_timeout.
//
// A caller that stood still cannot tell silence from messages it has not read. It says so with
// excuse(), and the time it was away is no time that anybody was silent.

#include "core/rendezvous/liveness.h"

#include <algorithm>

namespace elastic::core {

Instant Liveness::deadline(const LastSeen& sight) const {
  return std::min(add_saturating(sight.last, node_timeout_), sight.suspect_until);
}

void Liveness::record_activity(const NodeId& node, Instant now) {
  LastSeen& sight = last_seen_[node];
  sight = {now, Instant::max()};
  check_at_ = std::min(check_at_, deadline(sight));
}

void Liveness::session_closed(const NodeId& node, Instant now, Duration least_grace) {
  const auto found = last_seen_.find(node);
  if (found == last_seen_.end() || found->second.suspect_until != Instant::max()) return;
  found->second.suspect_until = add_saturating(now, std::max(reconnect_grace_, least_grace));
  check_at_ = std::min(check_at_, found->second.suspect_until);
}

void Liveness::await(const NodeId& node, Instant until) {
  last_seen_[node] = {until, until};
  check_at_ = std::min(check_at_, until);
}

void Liveness::forget(const NodeId& node) { last_seen_.erase(node); }

bool Liveness::add_gap(Duration gap) {
  if (gap <= node_timeout_ / 4) return false;
  for (auto& [node, sight] : last_seen_) {
    sight.last = add_saturating(sight.last, gap);
    sight.suspect_until = add_saturating(sight.suspect_until, gap);
  }
  check_at_ = add_saturating(check_at_, gap);
  return true;
}

std::vector<Liveness::Loss> Liveness::take_lost(Instant now) {
  std::vector<Loss> lost;
  if (now < check_at_) return lost;
  check_at_ = Instant::max();
  for (auto it = last_seen_.begin(); it != last_seen_.end();) {
    const LastSeen& sight = it->second;
    if (deadline(sight) > now) {
      check_at_ = std::min(check_at_, deadline(sight));
      ++it;
      continue;
    }
    const bool by_close = sight.suspect_until <= now;
    lost.push_back({it->first, by_close, std::max(now - sight.last, Duration::zero())});
    it = last_seen_.erase(it);
  }
  return lost;
}

std::optional<Instant> Liveness::next_deadline() const {
  if (last_seen_.empty() || check_at_ == Instant::max()) return std::nullopt;
  return check_at_;
}

Duration Liveness::silence(const NodeId& node, Instant now) const {
  const auto found = last_seen_.find(node);
  if (found == last_seen_.end()) return Duration::zero();
  return std::max(now - found->second.last, Duration::zero());
}

}  // namespace elastic::core
