// Witnesses: how the coordinator finds them, and how a witness notices that the coordinator is
// lost.

#include <algorithm>
#include <utility>

#include "core/succession/succession_machine.h"

namespace elastic::succession {
namespace {

constexpr int kWitnessProbesPerTimeout = 8;

}  // namespace

void Machine::on(const Witnesses& event) {
  for (const std::string& address : event.addresses) {
    if (witnesses_.contains(address)) continue;
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
    send(NodeId{}, address, Probe{});
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
  const auto last = last_connection_.find(witnessed_);
  if (!lost_at_ || last == last_connection_.end() || last->second != event.connection) return;
  lost_at_ = std::min(*lost_at_, add_saturating(now_, reconnect_grace_));
}

void Machine::judge_incumbent() {
  if (!lost_at_ || now_ < *lost_at_) return;
  lost_at_.reset();
  is_lost_ = true;
  feed(reg::IncumbentLost{witnessed_});
}

}  // namespace elastic::succession
