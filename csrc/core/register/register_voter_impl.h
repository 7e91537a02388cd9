#pragma once

// The voter of the register's machine (register_machine_impl.h): what it promised and accepted. It
// has no memory beyond its life, in which its id is used.

#include "core/register/register_machine.h"

namespace elastic::reg {

template <typename Rules>
void BasicRegister<Rules>::answer(const NodeId& from, const Ask& message) {
  if (!takes_part(message.known.record)) return;
  const bool would = !is_other_candidate_at_work(from) && may_promise(message.term, NodeId{});
  send(from, AskReply{message.attempt, would, promised_, vote()});
}

template <typename Rules>
void BasicRegister<Rules>::supply(const NodeId& from, const Fetch& message) {
  if (!accepted_ || accepted_->record.newness != message.newness) return;
  send(from, Fetched{*accepted_});
}

// What a vote names.
template <typename Rules>
std::optional<KnownRecord> BasicRegister<Rules>::vote() const {
  if (!accepted_) return std::nullopt;
  return without_bytes(*accepted_);
}

template <typename Rules>
void BasicRegister<Rules>::promise(const NodeId& from, const Prepare& message) {
  if (!takes_part(message.known.record)) return;
  if (handed_over_to_ && from == handed_over_to_->node) handed_over_to_.reset();
  const bool is_repeated = message.term == promised_ && from == promised_to_;
  if (!is_repeated && may_promise(message.term, message.handed_over_by)) {
    promise_to(from, message.term);
  }
  const bool is_granted = message.term == promised_ && from == promised_to_;
  send(from, Promise{message.term, is_granted, promised_, vote()});
}

// A node has no vote until a record names it.
template <typename Rules>
bool BasicRegister<Rules>::takes_part(const Record& record) {
  if (!accepted_ && !names(record, self_.node)) return false;
  if (!lineage_) lineage_ = record.lineage;
  return true;
}

template <typename Rules>
bool BasicRegister<Rules>::may_promise(std::uint64_t term, const NodeId& handed_over_by) const {
  const std::uint64_t lowest = has(Rule::kPromiseOnce) ? promised_ + 1 : promised_;
  if (term < lowest) return false;
  if (!has(Rule::kLostIncumbent)) return true;
  return has_lost_incumbent() || (incumbent_ && handed_over_by == incumbent_->node);
}

// A candidate that has this voter's promise gets the time to win.
template <typename Rules>
bool BasicRegister<Rules>::is_other_candidate_at_work(const NodeId& candidate) const {
  const bool was_promised = promised_to_ != NodeId{} && promised_to_ != candidate &&
                            promised_to_ != self_.node &&
                            (!incumbent_ || promised_to_ != incumbent_->node);
  return was_promised && now_ < promised_at_ + attempt_time();
}

template <typename Rules>
bool BasicRegister<Rules>::has_lost_incumbent() const {
  switch (role_) {
    case Role::kCoordinator: return no_majority_since_.has_value();
    case Role::kPreparing:
    case Role::kReproposing: return false;
    case Role::kFollower:
    case Role::kAsking: break;
  }
  return !incumbent_ || is_incumbent_lost_;
}

template <typename Rules>
void BasicRegister<Rules>::promise_to(const NodeId& candidate, std::uint64_t term) {
  promised_ = term;
  promised_to_ = candidate;
  promised_at_ = now_;
  handed_over_to_.reset();
  if (candidate == self_.node) return;
  depose("this voter promised a later term to another candidate");
  if (may_stand()) schedule_attempt(settings_.election_timeout);
}

template <typename Rules>
void BasicRegister<Rules>::accept(const NodeId& from, const Accept& message) {
  const Record& record = message.proposal.record;
  if (record.proposer.node == self_.node || !names(record, self_.node)) return;
  if (!takes_part(record)) return;
  const bool is_accepted = accept_here(message.proposal);
  const bool is_in_force = accepted_ && accepted_->is_in_force;
  send(from, Accepted{record.newness, is_accepted, is_accepted && is_in_force, promised_});
}

// Returns whether the voter holds this very record now.
template <typename Rules>
bool BasicRegister<Rules>::accept_here(const KnownRecord& proposal) {
  const Record& record = proposal.record;
  const Newness& newness = record.newness;
  if (has(Rule::kRefuseLowerTerm) && newness.term < promised_) return false;
  if (accepted_ && accepted_->record.newness.term == newness.term) {
    const Newness& held = accepted_->record.newness;
    if (newness.sequence < held.sequence) return false;
    if (newness == held) {  // repeated
      accepted_->is_in_force |= proposal.is_in_force;
      know(*accepted_);
      return true;
    }
  }
  if (has(Rule::kAcceptPromises) && newness.term > promised_) {
    promised_ = newness.term;
    promised_to_ = record.proposer.node;
    promised_at_ = now_;
  }
  const bool is_later_term = !accepted_ || newness.term > accepted_->record.newness.term;
  accepted_ = proposal;
  know(proposal);
  if (record.proposer.node != self_.node) {
    depose("another coordinator was elected");
    attempt_at_.reset();
    const bool is_same = incumbent_ && incumbent_->node == record.proposer.node;
    if (!is_same || is_later_term) is_incumbent_lost_ = false;
  }
  incumbent_ = record.proposer;
  // A late message of the coordinator that was lost ends an attempt, and not the need for one.
  if (is_incumbent_lost_) schedule_attempt(settings_.election_timeout);
  return true;
}

template <typename Rules>
void BasicRegister<Rules>::learn(const NodeId& from, const InForce& message) {
  if (!accepted_ || accepted_->record.newness != message.newness) return;
  if (!accepted_->is_in_force) {
    accepted_->is_in_force = true;
    know(*accepted_);
  }
  send(from, Accepted{message.newness, true, true, promised_});
}

template <typename Rules>
void BasicRegister<Rules>::know(const KnownRecord& record) {
  if (!known_ || is_newer(record.record.newness, known_->record.newness)) {
    known_ = record;
  } else if (known_->record.newness == record.record.newness) {
    known_->is_in_force |= record.is_in_force;
    if (!known_->record.has_bytes) known_->record = record.record;
  }
}

}  // namespace elastic::reg
