// Theory of operation
//
// One entry for each node: the time of its last message and, after its session was closed, until
// when it may resume. A heartbeat changes one entry. The deadline that the owner waits for is a
// lower bound; when it is reached, the whole table is scanned once and the bound is computed anew.
// With several heartbeats within node_timeout this costs one scan in each node_timeout.
//
// A caller that was suspended cannot tell silence from messages that it has not read. It calls
// add_gap(), and that time does not count as silence of any node.

#include "core/rendezvous/liveness.h"

#include <algorithm>

namespace elastic::core {

Instant Liveness::suspicion_ends(const LastSeen& entry) const {
  if (!entry.is_closed) return entry.suspect_until;
  return add_saturating(entry.suspect_until, added_grace());
}

Instant Liveness::deadline(const LastSeen& entry) const {
  return std::min(add_saturating(entry.last, node_timeout_), suspicion_ends(entry));
}

void Liveness::left_suspicion(const LastSeen& entry) {
  if (entry.is_closed && --num_closed_ == 0) most_closed_ = 0;
}

void Liveness::record_activity(const NodeId& node, Instant now) {
  LastSeen& entry = last_seen_[node];
  left_suspicion(entry);
  entry = {.last = now};
  check_at_ = std::min(check_at_, deadline(entry));
}

void Liveness::session_closed(const NodeId& node, Instant now, Duration least_grace) {
  const auto found = last_seen_.find(node);
  if (found == last_seen_.end() || found->second.suspect_until != Instant::max()) return;
  LastSeen& entry = found->second;
  entry.grace = std::max(reconnect_grace_, least_grace);
  entry.suspect_until = add_saturating(now, entry.grace);
  entry.is_closed = true;
  most_closed_ = std::max(most_closed_, ++num_closed_);
  check_at_ = std::min(check_at_, deadline(entry));
}

void Liveness::await(const NodeId& node, Instant until) {
  LastSeen& entry = last_seen_[node];
  left_suspicion(entry);
  entry = {.last = until, .suspect_until = until};
  check_at_ = std::min(check_at_, until);
}

void Liveness::forget(const NodeId& node) {
  const auto found = last_seen_.find(node);
  if (found == last_seen_.end()) return;
  left_suspicion(found->second);
  last_seen_.erase(found);
}

void Liveness::add_gap(Duration gap) {
  for (auto& [node, entry] : last_seen_) {
    entry.last = add_saturating(entry.last, gap);
    entry.suspect_until = add_saturating(entry.suspect_until, gap);
  }
  check_at_ = add_saturating(check_at_, gap);
}

std::vector<Liveness::Loss> Liveness::take_lost(Instant now) {
  std::vector<Loss> lost;
  if (now < check_at_) return lost;
  check_at_ = Instant::max();
  int closed = 0;  // counted at the end: this scan uses the deadlines of all of them
  for (auto it = last_seen_.begin(); it != last_seen_.end();) {
    const LastSeen& entry = it->second;
    if (deadline(entry) > now) {
      check_at_ = std::min(check_at_, deadline(entry));
      ++it;
      continue;
    }
    const bool by_close = suspicion_ends(entry) <= now;
    closed += entry.is_closed ? 1 : 0;
    lost.push_back({.node = it->first,
                    .by_close = by_close,
                    .silence = std::max(now - entry.last, Duration::zero()),
                    .grace = by_close ? entry.grace + added_grace() : Duration::zero()});
    it = last_seen_.erase(it);
  }
  num_closed_ -= closed;
  if (num_closed_ == 0) most_closed_ = 0;
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
