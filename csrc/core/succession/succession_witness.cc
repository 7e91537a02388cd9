// Witnesses: how the coordinator finds them, and how a witness notices that the coordinator is
// lost.

#include <algorithm>
#include <utility>

#include "core/succession/succession_machine.h"

namespace elastic::succession {
namespace {

constexpr int kWitnessProbesPerTimeout = 8;
// Each one is dialed as long as this coordinator runs, and any node may name one.
constexpr std::size_t kWitnessesMax = 4;

}  // namespace

void Machine::on(const Witnesses& event) {
  for (const std::string& address : event.addresses) {
    if (witnesses_.contains(address)) continue;
    if (witnesses_.size() >= kWitnessesMax) {
      // A witness that has never answered may be a mistake, or may have moved to this address.
      const auto silent = std::find_if(witnesses_.begin(), witnesses_.end(),
                                       [](const auto& one) { return one.second.node == NodeId{}; });
      if (silent == witnesses_.end()) continue;
      witnesses_.erase(silent);
    }
    witnesses_[address] = {.node = {}, .next = now_, .wait = settings_.repeat_interval};
  }
  probe_witnesses();
}

// A witness that answers no probe for follow_timeout counts as unreachable, though its kernel may
// keep the connection. Counting probes instead of time allows for a stall of this process.
void Machine::probe_witnesses() {
  if (!is_started_) return;
  bool has_changed = false;
  for (auto& [address, witness] : witnesses_) {
    if (now_ < witness.next) continue;
    if (witness.is_reachable && ++witness.unanswered > kWitnessProbesPerTimeout) {
      witness.is_reachable = false;
      witness.wait = settings_.repeat_interval;
      has_changed = true;
    }
    witness.wait = witness.is_reachable ? settings_.follow_timeout / kWitnessProbesPerTimeout
                                        : std::min(2 * witness.wait, settings_.repeat_interval_max);
    witness.next = add_saturating(now_, witness.wait);
    send(NodeId{}, address, Probe{*own_lineage()});
  }
  if (has_changed) update_candidates();
}

void Machine::receive_from_witness(const std::string& address, const NodeId& node) {
  WitnessPeer& witness = witnesses_.at(address);
  witness.unanswered = 0;
  const bool is_new = !std::exchange(witness.is_reachable, true) || witness.node != node;
  witness.node = node;
  if (!is_new) return;
  witness.next = add_saturating(now_, settings_.follow_timeout / kWitnessProbesPerTimeout);
  resumed_.insert(node);
  update_candidates();
}

// A witness has another voter id in each lineage.
void Machine::forget_witnesses() {
  for (auto& [address, witness] : witnesses_) {
    witness = {.node = {}, .next = now_, .wait = settings_.repeat_interval};
  }
}

// A witness has no session: it notices the loss of the coordinator by its connection to this port.
void Machine::watch_incumbent(const NodeId& from) {
  const auto& incumbent = register_.incumbent();
  if (!incumbent) return;
  const bool is_new = std::exchange(witnessed_, incumbent->node) != incumbent->node;
  if (!is_new && from != incumbent->node) return;
  if (is_new) {
    const auto job = decode_record(register_.known()->record.content.bytes);
    const JobSettings settings = job.ok() ? job->settings : JobSettings();
    silence_max_ = settings.node_timeout;
    // Less than that of the nodes, so that it agrees when the first of them asks.
    reconnect_grace_ = settings.reconnect_grace / 2;
  }
  lost_at_ = add_saturating(now_, silence_max_);
  if (std::exchange(is_lost_, false)) feed(reg::IncumbentReturned{witnessed_});
}

void Machine::on(const ConnectionEnded& event) {
  const auto sender = sender_of_.find(event.connection);
  if (sender == sender_of_.end()) return;
  const NodeId node = sender->second;
  sender_of_.erase(sender);
  const auto last = last_connection_.find(node);
  if (last == last_connection_.end() || last->second != event.connection) return;
  last_connection_.erase(last);
  if (!lost_at_ || node != witnessed_) return;
  lost_at_ = std::min(*lost_at_, add_saturating(now_, reconnect_grace_));
}

// A connection is that of one process: what it sends under another id replaces the first one, so
// that both maps are limited by the number of connections.
void Machine::note_connection(const NodeId& node, ConnectionId connection) {
  if (connection == 0) return;
  const auto [sender, is_new] = sender_of_.try_emplace(connection, node);
  if (!is_new && sender->second != node) {
    const auto former = last_connection_.find(sender->second);
    if (former != last_connection_.end() && former->second == connection) {
      last_connection_.erase(former);
    }
    sender->second = node;
  }
  last_connection_[node] = connection;
}

void Machine::judge_incumbent() {
  if (!lost_at_ || now_ < *lost_at_) return;
  lost_at_.reset();
  is_lost_ = true;
  feed(reg::IncumbentLost{witnessed_});
}

}  // namespace elastic::succession
