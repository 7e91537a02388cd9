// Theory of operation. A proposal is the machine's whole state after the step that made a decision.
// One proposal is open at a time, so that a step which follows before it is in force is part of the
// next one. Actions are held in the order in which they were emitted, each with the number of the
// proposal that must be in force before it may be sent: a decision's own, and for what follows it
// the last one's. So no node receives anything that was decided after something that it may not
// know yet.

#include "core/succession/round_gate.h"

#include <algorithm>
#include <type_traits>

namespace elastic::succession {

void RoundGate::turn_on(const Rendezvous& machine) {
  if (is_on_) return;
  turn_on_restored(machine);
  propose(machine);
}

void RoundGate::turn_on_restored(const Rendezvous& machine) {
  is_on_ = true;
  round_ = machine.record().round;
  has_result_ = machine.phase() == RendezvousPhase::kClosed;
}

void RoundGate::set_voter_address(const NodeId& node, std::string address) {
  if (address.empty()) {
    voter_addresses_.erase(node);
  } else {
    voter_addresses_[node] = std::move(address);
  }
}

void RoundGate::submit(const Rendezvous& machine, const RendezvousEvent* event,
                       std::vector<RendezvousAction>* actions) {
  if (!is_on_) return;
  const bool is_closed = machine.phase() == RendezvousPhase::kClosed;
  const bool is_decision = machine.record().round != round_ || is_closed != has_result_;
  const auto* leave = event == nullptr ? nullptr : std::get_if<rdzv::Leave>(event);
  // The end of a closed job concerns only the node.
  const bool is_leave = leave != nullptr && !is_closed && machine.record().round > 0;
  if (is_decision || is_leave) propose(machine);
  if (is_leave) leaving_[leave->node] = proposals_;
  const std::uint64_t needed = last_needed();
  if (needed == 0) return;
  for (RendezvousAction& action : *actions) held_.push_back({needed, std::move(action)});
  actions->clear();
}

void RoundGate::propose(const Rendezvous& machine) {
  const bool is_closed = machine.phase() == RendezvousPhase::kClosed;
  const bool is_decision = machine.record().round != round_ || is_closed != has_result_;
  round_ = machine.record().round;
  has_result_ = is_closed;
  JobRecord record{.job_id = job_id_,
                   .settings = machine.settings(),
                   .state = machine.encode(),
                   .nodes = {},
                   .replaces = replaces_};
  for (const auto& [node, address] : voter_addresses_) record.nodes.push_back({node, address});
  next_ = Proposal{++proposals_, content_of(machine, encode_record(record))};
  if (is_decision) decided_ = proposals_;
}

// The proposal that must be in force before anything more is sent; 0: nothing is held.
std::uint64_t RoundGate::last_needed() const { return decided_ > in_force_ ? decided_ : 0; }

std::optional<Proposal> RoundGate::take_proposal() {
  if (open_ || !next_) return std::nullopt;
  open_ = next_->number;
  return std::exchange(next_, std::nullopt);
}

void RoundGate::in_force(std::uint64_t number, std::vector<RendezvousAction>* actions) {
  if (!open_ || *open_ != number) return;
  open_.reset();
  in_force_ = number;
  while (!held_.empty() && held_.front().number <= number) {
    actions->push_back(std::move(held_.front().action));
    held_.pop_front();
  }
  std::erase_if(leaving_, [&](const auto& entry) {
    if (entry.second > number) return false;
    acknowledged_.push_back(entry.first);
    return true;
  });
}

}  // namespace elastic::succession
