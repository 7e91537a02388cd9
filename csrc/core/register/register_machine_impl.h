#pragma once

// The register's machine, included by those who instantiate it (register_machine.h explains why
// there is more than one): the events and the coordinator. register_roles_impl.h has the voter and
// the candidate.
//
// Theory of operation. The register is Paxos for one value that changes: a record. A term belongs
// to one proposer, because a voter promises a term to one candidate. The proposer of a term writes
// records with growing sequence, one at a time. A record takes force when majorities of its own
// voters and of those of the record in force before it have accepted it. So any candidate that has
// promises of a majority of the voters of the newest record it knows finds every later record in
// force: the next one was accepted by a majority of those voters, it names the voters to be asked
// next, and so on to the newest. If it is not known whether the newest record is in force, both
// answers must be safe, and both sets are asked.
//
// A coordinator may replace its own proposal that is not in force by one with other voters, under a
// later sequence: both need a majority of the voters of the same record in force, so a successor
// finds the later one. It may not do that to the record that it proposed again after its election,
// since that one could be in force already.

#include <algorithm>

#include "core/base/check.h"
#include "core/base/earliest.h"
#include "core/register/register_machine.h"
#include "core/register/register_roles_impl.h"

namespace elastic::reg {

// A stall of this process is no silence of a voter: nothing was sent meanwhile.
inline constexpr int kSentBeforeSilent = 4;
// The longest wait between two repetitions, in retry intervals.
inline constexpr int kRepeatWaitMax = 8;

template <typename Rules>
void BasicRegister<Rules>::step(const Event& event, Instant now, std::vector<Action>* actions) {
  now_ = now;
  out_ = actions;
  std::visit([this](const auto& alternative) { this->on(alternative); }, event);
  out_ = nullptr;
}

template <typename Rules>
std::optional<Instant> BasicRegister<Rules>::next_deadline() const {
  std::optional<Instant> expires_at;
  if (no_majority_since_) expires_at = add_saturating(*no_majority_since_, settings_.store_grace);
  return core::earliest({attempt_at_, attempt_ends_, repeat_at_, expires_at});
}

template <typename Rules>
void BasicRegister<Rules>::on(const Begin& event) {
  ELASTIC_CHECK(!known_);
  lineage_ = event.lineage;
  role_ = Role::kCoordinator;
  term_ = 1;
  incumbent_ = self_;
  propose({event.lineage, {term_, 1}, self_, chosen_voters(), {}, event.content}, true);
}

template <typename Rules>
void BasicRegister<Rules>::on(const Joined& event) {
  if (!lineage_) lineage_ = event.lineage;
}

template <typename Rules>
void BasicRegister<Rules>::on(const Propose& event) {
  ELASTIC_CHECK(can_propose());
  forget_old_silence();
  if (proposal_) {
    waiting_ = event.content;
  } else {
    propose_next(event.content, chosen_voters(), true);
  }
}

template <typename Rules>
void BasicRegister<Rules>::on(const CandidatesChanged& event) {
  const std::vector<VoterCandidate> before = std::exchange(candidates_, event.candidates);
  if (role_ != Role::kCoordinator) return;
  // A voter that was not there cannot have answered, and one that is there again may.
  std::erase_if(unanswered_,
                [this](const auto& entry) { return !has_reached(candidates_, entry.first); });
  forget_old_silence();
  confirm_returned_voters(before);
  if (successor_ && !is_reachable(successor_->node)) successor_.reset();
  // Sends the record to voters that were unreachable.
  if (!unconfirmed_.empty() && !repeat_at_) repeat_later();
  judge_voters();
}

template <typename Rules>
void BasicRegister<Rules>::on(const IncumbentLost& event) {
  if (!incumbent_ || incumbent_->node != event.node || event.node == self_.node) return;
  if (is_incumbent_lost_) return;
  is_incumbent_lost_ = true;
  if (role_ == Role::kFollower) schedule_attempt(Duration::zero());
}

template <typename Rules>
void BasicRegister<Rules>::on(const IncumbentReturned& event) {
  if (!incumbent_ || incumbent_->node != event.node || event.node == self_.node) return;
  is_incumbent_lost_ = false;
  attempt_at_.reset();
  // Promises were requested already: the incumbent's term is over, whatever its session does.
  if (role_ == Role::kAsking) give_up_attempt();
}

template <typename Rules>
void BasicRegister<Rules>::on(const Resign& event) {
  if (role_ != Role::kCoordinator) return;
  successor_ = event.successor;
  if (!proposal_) go_on();
}

template <typename Rules>
void BasicRegister<Rules>::on(const LaterTerm& event) {
  highest_promise_ = std::max(highest_promise_, event.term);
  if (role_ == Role::kFollower || role_ == Role::kAsking || event.term <= term_) return;
  depose("another coordinator has a later term");
  schedule_attempt(settings_.election_timeout);
}

template <typename Rules>
void BasicRegister<Rules>::on(const StepDown&) {
  if (role_ != Role::kFollower) depose("the coordinator could not be started");
}

template <typename Rules>
void BasicRegister<Rules>::on(const Tick&) {
  auto is_due = [this](const std::optional<Instant>& when) { return when && now_ >= *when; };
  if (is_due(attempt_at_)) {
    attempt_at_.reset();
    stand();
  }
  if (is_due(attempt_ends_)) give_up_attempt();
  if (is_due(repeat_at_)) repeat();
  if (no_majority_since_ && now_ >= add_saturating(*no_majority_since_, settings_.store_grace)) {
    no_majority_since_.reset();
    if (!has(Rule::kExpire)) return;
    depose("no majority of the voters was reachable for store_grace");
    attempt_at_.reset();
    emit(AuthorityExpired{});
  }
}

template <typename Rules>
void BasicRegister<Rules>::on(const Received& event) {
  const Message& message = event.message;
  if (message.to != self_.node) return;
  const bool is_ours = !lineage_ || *lineage_ == message.lineage;
  if (!is_ours && has(Rule::kOneLineage)) return;
  const Response response = response_to(role_, message.body.index());
  const NodeId& from = message.from;
  switch (response) {
    case Response::kAnswer: return answer(from, std::get<Ask>(message.body));
    case Response::kPromise: return promise(from, std::get<Prepare>(message.body));
    case Response::kAccept: return accept(from, std::get<Accept>(message.body));
    case Response::kLearn: return learn(from, std::get<InForce>(message.body));
    case Response::kStand: return stand_for(from, std::get<HandOver>(message.body));
    case Response::kSupply: return supply(from, std::get<Fetch>(message.body));
    case Response::kCount:
      if (const auto* would = std::get_if<AskReply>(&message.body)) return count(from, *would);
      if (const auto* vote = std::get_if<Promise>(&message.body)) return count(from, *vote);
      if (const auto* fetched = std::get_if<Fetched>(&message.body)) return count(*fetched);
      return count(from, std::get<Accepted>(message.body));
    case Response::kIgnore: return;
  }
}

// ---- The coordinator.

template <typename Rules>
void BasicRegister<Rules>::propose(Record record, bool has_content) {
  proposal_ = Proposal{std::move(record), {}, has_content};
  unconfirmed_.clear();
  record_holders_.clear();
  repeat_wait_ = Duration::zero();
  repeat_later();
  const KnownRecord proposed{proposal_->record, false};
  know(proposed);
  if (names(proposed.record, self_.node) && accept_here(proposed)) {
    proposal_->accepted_by.insert(self_.node);
  }
  for (const Voter& voter : voters_of(proposed.record)) send_accept(voter, proposed);
  judge_proposal();
}

template <typename Rules>
void BasicRegister<Rules>::send_accept(const Voter& voter, const KnownRecord& record) {
  Unanswered& unanswered = unanswered_.try_emplace(voter.node, Unanswered{now_}).first->second;
  ++unanswered.sent;
  send(voter, Accept{record});
}

template <typename Rules>
void BasicRegister<Rules>::propose_next(Content content, std::vector<Voter> voters,
                                        bool has_content) {
  const Record& before = known_->record;
  if (voters.empty()) voters = before.voters;
  // A proposal that is not in force was derived from the same record in force as its replacement.
  std::vector<Voter> previous = proposal_ ? before.previous_voters : before.voters;
  propose({*lineage_,
           {term_, before.newness.sequence + 1},
           self_,
           std::move(voters),
           std::move(previous),
           std::move(content)},
          has_content);
}

// A change of voters that is late delays no content: the record that replaces it has the voters of
// the record in force.
template <typename Rules>
void BasicRegister<Rules>::propose_waiting() {
  if (!waiting_ || !proposal_ || proposal_->record.previous_voters.empty()) return;
  Content content = std::move(*waiting_);
  waiting_.reset();
  propose_next(std::move(content), proposal_->record.previous_voters, true);
}

template <typename Rules>
void BasicRegister<Rules>::count(const NodeId& from, const Accepted& message) {
  if (!message.is_accepted) {
    if (message.promised <= term_) return;
    highest_promise_ = std::max(highest_promise_, message.promised);
    depose("a voter promised a later term");
    is_incumbent_lost_ = true;
    schedule_attempt(Duration::zero());
    return;
  }
  const bool is_current = known_ && known_->record.newness == message.newness;
  const bool was_silent = is_silent(from);
  if (is_current) unanswered_.erase(from);
  if (proposal_ && is_current) {
    proposal_->accepted_by.insert(from);
    judge_proposal();
  } else if (is_current) {
    record_holders_.insert(from);
    if (message.is_in_force) {
      unconfirmed_.erase(from);
      if (successor_ && successor_->node == from) go_on();
    } else {
      announce(from);
    }
  }
  if (was_silent && is_current && role_ == Role::kCoordinator) judge_voters();
}

template <typename Rules>
void BasicRegister<Rules>::judge_proposal() {
  const Record& record = proposal_->record;
  const std::set<NodeId>& votes = proposal_->accepted_by;
  const bool has_new = is_majority(record.voters, votes) || !has(Rule::kNewMajority);
  const bool has_old = record.previous_voters.empty() ||
                       is_majority(record.previous_voters, votes) || !has(Rule::kOldMajority);
  if (!(has_new && has_old) && has(Rule::kTellInForce)) return;
  known_ = KnownRecord{record, true};
  record_holders_ = proposal_->accepted_by;
  proposal_.reset();
  attempt_ends_.reset();
  if (accepted_ && accepted_->record.newness == known_->record.newness) {
    accepted_->is_in_force = true;
  }
  for (const Voter& voter : voters_of(known_->record)) {
    unconfirmed_.insert(voter.node);
    if (record_holders_.contains(voter.node)) announce(voter.node);
  }
  if (role_ == Role::kReproposing) {
    role_ = Role::kCoordinator;
    emit(Elected{known_->record});
  } else {
    emit(Deliver{known_->record});
  }
  go_on();
}

// What has waited for a proposal to take force.
template <typename Rules>
void BasicRegister<Rules>::go_on() {
  const bool is_ready = successor_ && (!contains(known_->record.voters, successor_->node) ||
                                       !unconfirmed_.contains(successor_->node));
  if (waiting_) {
    Content content = std::move(*waiting_);
    waiting_.reset();
    propose_next(std::move(content), chosen_voters(), true);
  } else if (is_ready) {
    hand_over();
  } else {
    judge_voters();
  }
}

// A voter that can be reached again may have promised a later term meanwhile: the reply tells.
template <typename Rules>
void BasicRegister<Rules>::confirm_returned_voters(std::span<const VoterCandidate> before) {
  if (!known_ || proposal_) return;
  for (const Voter& voter : voters_of(known_->record)) {
    if (has_reached(before, voter.node) || !is_reachable(voter.node)) continue;
    unconfirmed_.insert(voter.node);
    record_holders_.erase(voter.node);
    send_accept(voter, *known_);
  }
}

// Answering probes is not enough: a voter that accepts nothing is replaced like one that is lost,
// and is chosen again when it was away, or after store_grace.
template <typename Rules>
void BasicRegister<Rules>::judge_silence() {
  if (role_ != Role::kCoordinator || !has(Rule::kJudgeAcceptance)) return;
  bool has_changed = false;
  for (const Voter& voter : voters_of(known_->record)) {
    const auto found = unanswered_.find(voter.node);
    if (found == unanswered_.end() || found->second.is_silent) continue;
    const bool is_due = now_ >= add_saturating(found->second.since, settings_.accept_timeout);
    if (!is_due || found->second.sent < kSentBeforeSilent) continue;
    found->second.is_silent = has_changed = true;
    if (has_reached(candidates_, voter.node)) emit(VoterSilent{voter});
  }
  if (!has_changed) return;
  if (successor_ && !is_reachable(successor_->node)) successor_.reset();
  judge_voters();
}

// One that was replaced long ago may be tried again.
template <typename Rules>
void BasicRegister<Rules>::forget_old_silence() {
  if (!known_) return;
  const Duration time = settings_.accept_timeout + settings_.store_grace;
  std::erase_if(unanswered_, [&](const auto& entry) {
    return !names(known_->record, entry.first) && now_ >= add_saturating(entry.second.since, time);
  });
}

template <typename Rules>
bool BasicRegister<Rules>::is_silent(const NodeId& node) const {
  const auto found = unanswered_.find(node);
  return found != unanswered_.end() && found->second.is_silent;
}

template <typename Rules>
void BasicRegister<Rules>::judge_voters() {
  if (!known_) return;
  // Those whose majority the next record needs.
  const bool is_joint = proposal_ && !known_->record.previous_voters.empty();
  const std::vector<Voter> voters =
      is_joint ? known_->record.previous_voters : known_->record.voters;
  std::set<NodeId> reachable;
  std::vector<Voter> unreachable;
  for (const Voter& voter : voters) {
    if (is_reachable(voter.node)) {
      reachable.insert(voter.node);
    } else {
      unreachable.push_back(voter);
    }
  }
  if (!is_majority(voters, reachable)) {
    if (no_majority_since_) return;
    no_majority_since_ = now_;
    emit(MajorityLost{std::move(unreachable)});
    return;
  }
  if (no_majority_since_) {
    no_majority_since_.reset();
    emit(MajorityRegained{});
  }
  if (!has(Rule::kReplaceVoters) || successor_) return;

  const std::vector<Voter>& current = known_->record.voters;
  const bool is_complete = std::all_of(current.begin(), current.end(), [this](const Voter& voter) {
    return is_reachable(voter.node) && !is_leaving(voter.node);
  });
  if (is_complete && proposal_) return;
  // The first record of a lineage has no record in force behind it that its replacement could rely
  // on. A record that was proposed again never gets here: its proposer is not yet coordinator.
  if (proposal_ && proposal_->record.previous_voters.empty()) return;
  std::vector<Voter> chosen = chosen_voters();
  if (chosen.empty() || chosen == current) return;
  if (is_complete && chosen.size() <= current.size()) return;  // only a larger set is better
  const bool has_content = proposal_ && proposal_->has_content;
  propose_next(known_->record.content, std::move(chosen), has_content);
}

template <typename Rules>
void BasicRegister<Rules>::hand_over() {
  const Record& record = known_->record;
  const Voter successor = *successor_;
  const HandOver message{term_ + 1, *known_};
  if (!contains(record.voters, successor.node)) {
    std::vector<Voter> voters = record.voters;
    const auto own = std::find(voters.begin(), voters.end(), self_);
    if (own != voters.end()) {
      *own = successor;
    } else {
      voters.front() = successor;
    }
    propose_next(record.content, std::move(voters), false);
    return;
  }
  successor_.reset();
  if (has(Rule::kKeepEarlyPromise)) {
    promised_ = term_ + 1;
    promised_to_ = successor.node;
    promised_at_ = now_;
  }
  send(successor, message);
  if (!has(Rule::kKeepEarlyPromise)) return;
  depose("the coordinator handed its authority to a successor");
  handed_over_to_ = successor;
  repeat_at_ = now_ + settings_.retry_interval;
  incumbent_ = successor;
  is_incumbent_lost_ = false;
}

template <typename Rules>
void BasicRegister<Rules>::depose(std::string reason) {
  const bool was_coordinator = role_ == Role::kCoordinator;
  role_ = Role::kFollower;
  attempt_ends_.reset();
  proposal_.reset();
  waiting_.reset();
  successor_.reset();
  unconfirmed_.clear();
  no_majority_since_.reset();
  handed_over_to_.reset();
  repeat_at_.reset();
  unanswered_.clear();
  if (incumbent_ && incumbent_->node == self_.node) is_incumbent_lost_ = true;
  if (was_coordinator) emit(Deposed{std::move(reason)});
}

template <typename Rules>
void BasicRegister<Rules>::announce(const NodeId& to) {
  const auto& voters = known_->record.voters;
  const auto found = std::find_if(voters.begin(), voters.end(),
                                  [&](const Voter& voter) { return voter.node == to; });
  if (found != voters.end()) {
    send(*found, InForce{known_->record.newness});
  } else {
    send(to, InForce{known_->record.newness});
  }
  if (!repeat_at_) repeat_later();
}

template <typename Rules>
void BasicRegister<Rules>::repeat_later() {
  const Duration longest = kRepeatWaitMax * settings_.retry_interval;
  repeat_wait_ = std::clamp(2 * repeat_wait_, settings_.retry_interval, longest);
  repeat_at_ = now_ + repeat_wait_;
}

// Sends again what has no reply.
template <typename Rules>
void BasicRegister<Rules>::repeat() {
  repeat_at_.reset();
  if (role_ == Role::kPreparing && is_elected(votes_) && lacks_bytes()) return fetch();
  if (role_ == Role::kAsking || role_ == Role::kPreparing) return request_votes();
  if (handed_over_to_ && now_ < promised_at_ + settings_.election_timeout) {
    send(*handed_over_to_, HandOver{promised_, *known_});
    repeat_at_ = now_ + settings_.retry_interval;
  }
  if (role_ != Role::kCoordinator && role_ != Role::kReproposing) return;
  forget_old_silence();
  propose_waiting();
  judge_silence();
  bool is_anything_open = proposal_.has_value();
  if (proposal_) {
    const KnownRecord proposed{proposal_->record, false};
    for (const Voter& voter : voters_of(proposed.record)) {
      if (!proposal_->accepted_by.contains(voter.node)) send_accept(voter, proposed);
    }
  } else {
    for (const Voter& voter : voters_of(known_->record)) {
      // An unreachable voter is replaced, or CandidatesChanged starts the sending again.
      const bool is_there = is_reachable(voter.node) || is_silent(voter.node);
      if (!unconfirmed_.contains(voter.node) || !is_there) continue;
      is_anything_open = true;
      if (record_holders_.contains(voter.node)) {
        announce(voter.node);
      } else {
        send_accept(voter, *known_);
      }
    }
  }
  if (is_anything_open) repeat_later();
}

// ---- Both.

template <typename Rules>
bool BasicRegister<Rules>::is_majority(std::span<const Voter> voters,
                                       const std::set<NodeId>& votes) const {
  if (has(Rule::kStrictMajority)) return reg::is_majority(voters, votes);
  return count_in(voters, votes) >= std::max<std::size_t>(1, voters.size() / 2);
}

template <typename Rules>
bool BasicRegister<Rules>::is_newer(const Newness& left, const Newness& right) const {
  if (!has(Rule::kTermBeforeSequence)) return left.sequence > right.sequence;
  return left > right;
}

template <typename Rules>
bool BasicRegister<Rules>::is_reachable(const NodeId& node) const {
  return node == self_.node || (!is_silent(node) && has_reached(candidates_, node));
}

template <typename Rules>
bool BasicRegister<Rules>::is_leaving(const NodeId& node) const {
  return std::any_of(candidates_.begin(), candidates_.end(), [&](const VoterCandidate& one) {
    return one.voter.node == node && one.is_leaving;
  });
}

template <typename Rules>
std::vector<Voter> BasicRegister<Rules>::chosen_voters() const {
  const std::span<const Voter> current =
      known_ ? std::span<const Voter>(known_->record.voters) : std::span<const Voter>();
  std::vector<VoterCandidate> candidates = candidates_;
  for (VoterCandidate& one : candidates) one.is_reachable &= is_reachable(one.voter.node);
  std::vector<Voter> chosen = choose(candidates, current);
  // One voter on another host would only add a host whose loss ends the job.
  if (chosen.size() <= 1) return {self_};
  return chosen;
}

template <typename Rules>
std::vector<Voter> BasicRegister<Rules>::voters_of(const Record& record) const {
  std::vector<Voter> all = record.voters;
  for (const Voter& voter : record.previous_voters) {
    if (!contains(all, voter.node)) all.push_back(voter);
  }
  std::erase_if(all, [this](const Voter& voter) { return voter.node == self_.node; });
  return all;
}

template <typename Rules>
void BasicRegister<Rules>::send(const NodeId& to, Body body) {
  send(Voter{to, {}}, std::move(body));
}

template <typename Rules>
void BasicRegister<Rules>::send(const Voter& to, Body body) {
  emit(Send{to.address, {*lineage_, self_.node, to.node, std::move(body)}});
}

}  // namespace elastic::reg
