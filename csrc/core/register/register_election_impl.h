#pragma once

// The candidate of the register's machine (register_machine_impl.h).
//
// An attempt has three steps. Asking finds out, without a change anywhere, whether enough voters
// have lost the coordinator too, so that one bad link burns no term. Preparing collects promises
// for a term of its own. Proposing the newest accepted record again, under that term, decides what
// the former coordinator left undecided. Voters report the newest record that they accepted; where
// it is newer than the candidate's, its voters are asked as well.

#include <algorithm>

#include "core/register/register_machine.h"

namespace elastic::reg {

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
  if (!may_stand() || !has_lost_incumbent()) return;
  if (is_other_candidate_at_work(self_.node)) return schedule_attempt(settings_.election_timeout);
  attempt_base_ = known_;
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
      send(voter, Ask{attempts_, term, *known_});
    } else {
      send(voter, Prepare{term_, *known_, handed_over_by_});
    }
  }
  repeat_at_ = now_ + settings_.retry_interval;
}

template <typename Rules>
void BasicRegister<Rules>::count(const NodeId& from, const AskReply& message) {
  if (message.attempt != attempts_) return;
  highest_promise_ = std::max(highest_promise_, message.promised);
  if (message.would_promise) votes_.insert(from);
  consider(message.accepted);
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
  consider(message.accepted);
}

// What a voter has accepted, with its vote.
template <typename Rules>
void BasicRegister<Rules>::consider(const std::optional<KnownRecord>& accepted) {
  const Newness before = known_->record.newness;
  if (accepted) know(*accepted);
  if (known_->record.newness != before) {
    const bool is_named = contains(known_->record.voters, self_.node) ||
                          contains(known_->record.previous_voters, self_.node);
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
  } else {
    repropose();
  }
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
  attempt_ends_ = now_ + settings_.election_timeout;
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
  if (!takes_part(message.known.record) || message.term <= promised_) return;
  know(message.known);
  attempt_base_ = known_;
  prepare(message.term, from);
}

}  // namespace elastic::reg
