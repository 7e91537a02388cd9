#pragma once

// The voter and the candidate of the register's machine (register_machine_impl.h).
//
// The voter: what it promised and accepted. It has no memory beyond its life, in which its id is
// used.
//
// The candidate: an attempt has three steps. Asking finds out, without a change anywhere, whether
// enough voters have lost the coordinator too, so that one bad link burns no term. Preparing
// collects promises for a term of its own. Proposing the newest accepted record again, under that
// term, decides what the former coordinator left undecided. Voters report the newest record that
// they accepted; where it is newer than the candidate's, its voters are asked as well. A vote names
// the record without the bytes of its content: the record of a large job takes longer than an
// attempt if each vote carries it. The winner fetches them, if it lacks them, from a voter that
// reported the record.

#include <algorithm>

#include "core/register/register_machine.h"

namespace elastic::reg {

// ---- The voter.

template <typename Rules>
void BasicRegister<Rules>::answer(const NodeId& from, const Ask& message) {
  if (!enter_lineage(message.known.record)) return;
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
  if (!enter_lineage(message.known.record)) return;
  if (handed_over_to_ && from == handed_over_to_->node) handed_over_to_.reset();
  const bool is_repeated = message.term == promised_ && from == promised_to_;
  if (!is_repeated && may_promise(message.term, message.handed_over_by)) {
    promise_to(from, message.term);
  }
  const bool is_granted = message.term == promised_ && from == promised_to_;
  send(from, Promise{message.term, is_granted, promised_, vote()});
}

// A node has no vote until a record names it; its lineage is that of this record.
template <typename Rules>
bool BasicRegister<Rules>::enter_lineage(const Record& record) {
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
  if (!enter_lineage(record)) return;
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

// ---- The candidate.

// At 1 Gb/s with some copies of a record on their way at once.
inline constexpr Duration kTimePerByte = std::chrono::nanoseconds(50);

template <typename Rules>
bool BasicRegister<Rules>::may_stand() const {
  if (role_ != Role::kFollower || !known_ || !settings_.is_candidate) return false;
  const Record& record = known_->record;
  return contains(record.voters, self_.node) ||
         (!known_->is_in_force && contains(record.previous_voters, self_.node));
}

// Candidates begin in the order of the record, without the coordinator that was lost.
template <typename Rules>
void BasicRegister<Rules>::schedule_attempt(Duration wait) {
  if (!may_stand()) return;
  Duration apart{};
  if (has(Rule::kStartApart)) {
    for (const Voter& voter : known_->record.voters) {
      if (voter.node == self_.node) break;
      if (!incumbent_ || voter.node != incumbent_->node) apart += settings_.candidate_interval;
    }
  }
  attempt_at_ = add_saturating(now_, wait + apart);
}

template <typename Rules>
void BasicRegister<Rules>::stand() {
  // A record that only voters reported that are lost by now must not block the attempt: where it is
  // left, the votes name it again.
  if (role_ == Role::kFollower && accepted_) known_ = accepted_;
  if (!may_stand() || !has_lost_incumbent()) return;
  if (is_other_candidate_at_work(self_.node)) return schedule_attempt(settings_.election_timeout);
  attempt_base_ = known_;
  reporters_.clear();
  if (!has(Rule::kAskFirst)) return prepare(promised_ + 1, NodeId{});
  role_ = Role::kAsking;
  ++attempts_;
  votes_ = {self_.node};
  attempt_ends_ = now_ + settings_.election_timeout;
  request_votes();
  judge_votes();
}

template <typename Rules>
void BasicRegister<Rules>::prepare(std::uint64_t term, const NodeId& handed_over_by) {
  role_ = Role::kPreparing;
  term_ = term;
  handed_over_by_ = handed_over_by;
  attempt_at_.reset();
  attempt_ends_ = now_ + settings_.election_timeout;
  fetches_ = 0;
  promise_to(self_.node, term);
  votes_ = {self_.node, handed_over_by};
  request_votes();
  judge_votes();
}

template <typename Rules>
void BasicRegister<Rules>::request_votes() {
  for (const Voter& voter : voters_of(known_->record)) {
    if (votes_.contains(voter.node)) continue;
    if (role_ == Role::kAsking) {
      const std::uint64_t term = std::max(promised_, highest_promise_) + 1;
      send(voter, Ask{attempts_, term, without_bytes(*known_)});
    } else {
      send(voter, Prepare{term_, without_bytes(*known_), handed_over_by_});
    }
  }
  repeat_at_ = now_ + settings_.retry_interval;
}

template <typename Rules>
void BasicRegister<Rules>::count(const NodeId& from, const AskReply& message) {
  if (message.attempt != attempts_) return;
  highest_promise_ = std::max(highest_promise_, message.promised);
  if (message.would_promise) votes_.insert(from);
  consider(from, message.accepted);
}

template <typename Rules>
void BasicRegister<Rules>::count(const NodeId& from, const Promise& message) {
  if (message.term != term_) return;
  highest_promise_ = std::max(highest_promise_, message.promised);
  if (message.is_granted) {
    votes_.insert(from);
  } else if (message.promised >= term_) {
    return give_up_attempt();
  }
  consider(from, message.accepted);
}

template <typename Rules>
void BasicRegister<Rules>::count(const Fetched& message) {
  const Record& record = message.accepted.record;
  for (std::optional<KnownRecord>* one : {&known_, &attempt_base_}) {
    Record& named = (*one)->record;
    if (!named.has_bytes && named.newness == record.newness) named = record;
  }
  judge_votes();
}

// What a voter has accepted, with its vote.
template <typename Rules>
void BasicRegister<Rules>::consider(const NodeId& from,
                                    const std::optional<KnownRecord>& accepted) {
  const Newness before = known_->record.newness;
  if (accepted) know(*accepted);
  const bool is_new = known_->record.newness != before;
  if (is_new) {
    reporters_.clear();
    fetches_ = 0;
  }
  const bool is_reporter = accepted && accepted->record.newness == known_->record.newness;
  if (is_reporter && std::find(reporters_.begin(), reporters_.end(), from) == reporters_.end()) {
    reporters_.push_back(from);
  }
  if (is_new) {
    const bool is_named = names(known_->record, self_.node);
    if (role_ == Role::kAsking && !is_named) return give_up_attempt();  // it votes no longer
    request_votes();
  }
  judge_votes();
}

template <typename Rules>
void BasicRegister<Rules>::judge_votes() {
  if (!is_elected(votes_)) return;
  if (role_ == Role::kAsking) {
    prepare(std::max(promised_, highest_promise_) + 1, NodeId{});
  } else if (lacks_bytes()) {
    if (fetches_ == 0) fetch();
  } else {
    repropose();
  }
}

template <typename Rules>
bool BasicRegister<Rules>::lacks_bytes() const {
  const KnownRecord& newest = has(Rule::kAdoptNewest) ? *known_ : *attempt_base_;
  return !newest.record.has_bytes;
}

// From one voter after the other: the record may be large.
template <typename Rules>
void BasicRegister<Rules>::fetch() {
  const Newness newness =
      has(Rule::kAdoptNewest) ? known_->record.newness : attempt_base_->record.newness;
  if (!reporters_.empty()) send(reporters_[fetches_ % reporters_.size()], Fetch{newness});
  if (fetches_++ == 0) attempt_ends_ = now_ + attempt_time();
  repeat_at_ = now_ + settings_.retry_interval + (attempt_time() - settings_.election_timeout) / 2;
}

// A record as large as the one that this voter has accepted, sent to each of the other voters.
template <typename Rules>
Duration BasicRegister<Rules>::attempt_time() const {
  const std::size_t bytes = accepted_ ? accepted_->record.content.bytes.size() : 0;
  return settings_.election_timeout + static_cast<Duration::rep>(bytes) * kTimePerByte;
}

template <typename Rules>
bool BasicRegister<Rules>::is_elected(const std::set<NodeId>& votes) const {
  const KnownRecord& newest = has(Rule::kFollowNewer) ? *known_ : *attempt_base_;
  if (!is_majority(newest.record.voters, votes)) return false;
  return newest.is_in_force || newest.record.previous_voters.empty() || !has(Rule::kBothSets) ||
         is_majority(newest.record.previous_voters, votes);
}

template <typename Rules>
void BasicRegister<Rules>::repropose() {
  const KnownRecord newest = has(Rule::kAdoptNewest) ? *known_ : *attempt_base_;
  attempt_ends_ = now_ + attempt_time();
  if (!has(Rule::kReproposeFirst)) {
    role_ = Role::kCoordinator;
    attempt_ends_.reset();
    incumbent_ = self_;
    emit(Elected{newest.record});
    return;
  }
  Record record = newest.record;
  record.newness.term = term_;
  record.proposer = self_;
  if (newest.is_in_force) record.previous_voters.clear();
  role_ = Role::kReproposing;
  propose(std::move(record), false);
}

template <typename Rules>
void BasicRegister<Rules>::give_up_attempt() {
  // No voter sent the record. The next attempt begins with what this voter has accepted, and the
  // votes name the newer record again where it is left.
  const bool is_out_of_reach = role_ == Role::kPreparing && fetches_ > 0 && lacks_bytes();
  if (is_out_of_reach && accepted_) known_ = accepted_;
  depose("the attempt failed");
  if (!has_lost_incumbent()) return;
  Duration wait = settings_.election_timeout;
  if (has(Rule::kStartApart)) {
    const double fraction = rng_.next_fraction();
    wait = Duration(static_cast<Duration::rep>(fraction * static_cast<double>(wait.count())));
  }
  schedule_attempt(wait);
}

// The coordinator's promise came before the question.
template <typename Rules>
void BasicRegister<Rules>::stand_for(const NodeId& from, const HandOver& message) {
  if (!settings_.is_candidate) return;
  if (!enter_lineage(message.known.record) || message.term <= promised_) return;
  know(message.known);
  attempt_base_ = known_;
  reporters_.clear();
  prepare(message.term, from);
}

}  // namespace elastic::reg
