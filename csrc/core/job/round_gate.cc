#include "core/job/round_gate.h"

#include <algorithm>
#include <utility>

#include "core/succession/job_record.h"

// Theory of operation. A proposal is the machine's whole state when it is taken. One proposal is
// open at a time: steps that follow before it is in force make the gate dirty, and are part of the
// next one. Actions are held in the order in which they were emitted, each with the number of the
// proposal that must be in force before it may be sent: a decision waits for the proposal that will
// contain it, and an action after it for the last such proposal. This guarantees that no node sees
// a decision before the decisions that it depends on.

namespace elastic::core {
namespace {

// The node has finished this round. One that resumes at a successor may report it there first.
bool reports_done(const RendezvousEvent& event, std::uint64_t round) {
  if (const auto* done = std::get_if<rdzv::Done>(&event)) return done->round == round;
  const auto* resume = std::get_if<rdzv::Resume>(&event);
  return resume != nullptr && resume->phase == rdzv::NodePhase::kDone && resume->last &&
         resume->last->record.round == round;
}

}  // namespace

void RoundGate::keep_at(RecordKeeper keeper) {
  keeper_ = keeper;
  open_.reset();
  is_dirty_ = keeper != RecordKeeper::kOneVoter;
  if (is_dirty_) return;
  decided_ = in_force_;
  queued_.clear();
  leaving_.clear();
}

void RoundGate::restored(const RendezvousMachine& machine, RecordKeeper keeper) {
  keeper_ = keeper;
  note(machine);
}

void RoundGate::note(const RendezvousMachine& machine) {
  round_ = machine.record().round;
  has_result_ = machine.phase() == RendezvousPhase::kClosed;
}

void RoundGate::decided_otherwise() {
  if (keeper_ == RecordKeeper::kOneVoter) return;
  decided_ = next_number();
  is_dirty_ = true;
}

void RoundGate::set_voter_address(const NodeId& node, std::string address) {
  if (address.empty()) {
    voter_addresses_.erase(node);
  } else {
    voter_addresses_[node] = std::move(address);
  }
}

void RoundGate::submit(const RendezvousMachine& machine, const RendezvousEvent* event,
                       std::vector<RendezvousAction>* actions) {
  const std::pair known(round_, has_result_);
  note(machine);
  if (keeper_ == RecordKeeper::kOneVoter) return;  // it is in force
  const bool is_closed = has_result_;
  const bool is_decision = std::pair(round_, has_result_) != known;
  if (is_decision) decided_ = next_number();
  // The end of a closed job concerns only the node.
  const bool is_open = !is_closed && round_ > 0;
  const auto* leave = event == nullptr ? nullptr : std::get_if<rdzv::Leave>(event);
  const bool is_leave = leave != nullptr && is_open;
  if (is_leave) leaving_[leave->node] = next_number();
  if (const auto* join = event == nullptr ? nullptr : std::get_if<rdzv::Join>(event)) {
    leaving_.erase(join->node.id);
  }
  const bool has_finished = event != nullptr && is_open && reports_done(*event, round_);
  const bool is_held = event != nullptr && std::holds_alternative<rdzv::HoldGrowth>(*event);
  if (is_decision || is_leave || has_finished || is_held) is_dirty_ = true;
  const std::uint64_t needed = last_needed();
  if (needed == 0) return;
  for (RendezvousAction& action : *actions) queued_.push_back({needed, std::move(action)});
  actions->clear();
}

std::optional<Proposal> RoundGate::take_proposal(const RendezvousMachine& machine) {
  if (open_ || !std::exchange(is_dirty_, false)) return std::nullopt;
  succession::JobRecord record{
      .job_id = job_id_, .settings = machine.settings(), .state = machine.encode(), .nodes = {}};
  for (const auto& [node, address] : voter_addresses_) record.nodes.push_back({node, address});
  open_ = ++proposals_;
  return Proposal{*open_, succession::content_of(machine, succession::encode_record(record))};
}

bool RoundGate::in_force(std::uint64_t number, std::vector<RendezvousAction>* actions) {
  if (!open_ || *open_ != number) return false;
  open_.reset();
  in_force_ = number;
  while (!queued_.empty() && queued_.front().number <= number) {
    actions->push_back(std::move(queued_.front().action));
    queued_.pop_front();
  }
  acknowledge();
  return true;
}

void RoundGate::set_voters(std::vector<NodeId> voters) {
  voters_ = std::move(voters);
  acknowledge();
}

void RoundGate::acknowledge() {
  std::erase_if(leaving_, [&](const auto& entry) {
    const bool is_voter = std::find(voters_.begin(), voters_.end(), entry.first) != voters_.end();
    if (entry.second > in_force_ || is_voter) return false;
    acknowledged_.push_back(entry.first);
    return true;
  });
}

}  // namespace elastic::core
