#include "core/session/session_outbox.h"

#include <algorithm>
#include <utility>

namespace elastic::core {

bool SessionOutbox::is_present() const {
  const bool may_work = !has_ended() || std::holds_alternative<rdzv::Closed>(end_);
  return join_ && !is_evicted_ && !leave_ && may_work;
}

bool SessionOutbox::is_current(std::uint64_t round) const {
  return held_round_ && held_round_->record.round == round;
}

void SessionOutbox::acknowledge(Instant stamp) {
  if (unacknowledged_since_ && stamp > *unacknowledged_since_) unacknowledged_since_.reset();
}

// ---- Facts for a new connection.

bool SessionOutbox::has_facts() const {
  if (is_evicted_) return false;
  if (introduced_ && !join_ && !leave_ && !has_ended()) return true;
  return close_ || (join_ && (!leave_ || was_join_sent_));
}

std::vector<RendezvousEvent> SessionOutbox::facts() {
  std::vector<RendezvousEvent> messages;
  // A node that leaves and holds no round has nothing to resume: a join before the leave could end
  // the round of the other nodes.
  if (join_ && (held_round_ || !leave_)) {
    was_join_sent_ = true;
    if (is_known_) {
      messages.emplace_back(resume());
    } else {
      messages.emplace_back(*join_);
    }
  }
  if (close_) messages.emplace_back(*close_);
  if (leave_) messages.emplace_back(*leave_);
  return messages;
}

rdzv::Resume SessionOutbox::resume() const {
  rdzv::Resume event{join_->node, join_->settings, phase_, held_round_, failure_};
  event.node.highest_round = std::max(event.node.highest_round, highest_round_);
  if (held_round_) event.node.previous_rank = held_round_->group_rank;
  return event;
}

// ---- Statements of the node.

std::optional<RendezvousEvent> SessionOutbox::submit(const NodeStatement& statement,
                                                     bool is_ready) {
  return std::visit([&](const auto& one) { return record(one, is_ready); }, statement);
}

std::optional<RendezvousEvent> SessionOutbox::record(const rdzv::Join& join, bool is_ready) {
  join_ = join;
  join_->node.highest_round = std::max(join.node.highest_round, highest_round_);
  if (was_displaced_) join_->node.previous_rank = -1;
  phase_ = rdzv::NodePhase::kJoined;
  is_evicted_ = false;
  end_ = std::monostate();
  if (is_ready) was_join_sent_ = true;
  return *join_;
}

std::optional<RendezvousEvent> SessionOutbox::record(const rdzv::Failed& failed, bool) {
  if (!is_present()) return std::nullopt;
  if (is_current(failed.round)) failure_ = failed.failure;  // the newest: it has more evidence
  return failed;
}

std::optional<RendezvousEvent> SessionOutbox::record(const rdzv::Gone& gone, bool) {
  if (!is_present()) return std::nullopt;
  if (is_current(gone.round) && phase_ == rdzv::NodePhase::kWorking) {
    phase_ = rdzv::NodePhase::kStopped;
  }
  return gone;
}

std::optional<RendezvousEvent> SessionOutbox::record(const rdzv::Done& done, bool) {
  if (!is_present()) return std::nullopt;
  if (is_current(done.round)) phase_ = rdzv::NodePhase::kDone;
  return done;
}

std::optional<RendezvousEvent> SessionOutbox::record(const rdzv::Leave& leave, bool) {
  if (leave_) return std::nullopt;
  leave_ = leave;
  if (was_join_sent_) return leave;
  unacknowledged_since_.reset();  // the coordinator has no membership that a leave would end
  return std::nullopt;
}

std::optional<RendezvousEvent> SessionOutbox::record(const rdzv::Close& close, bool) {
  if (is_evicted_ || leave_) return std::nullopt;
  close_ = close;
  return close;
}

// ---- Actions of the coordinator.

SessionOutbox::Receipt SessionOutbox::receive(const RendezvousAction& action) {
  return std::visit([this](const auto& one) { return on(one); }, action);
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Round& action) {
  is_known_ = true;
  if (action.record->round <= highest_round_ || !awaits_round()) return Receipt::kKnown;
  highest_round_ = action.record->round;
  held_round_ = HeldRound{*action.record, action.own.group_rank, action.cause};
  phase_ = rdzv::NodePhase::kWorking;
  failure_.reset();
  was_evicted_while_done_ = was_displaced_ = false;
  return Receipt::kDeliver;
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Restart& action) {
  is_known_ = true;
  const std::uint64_t held = held_round_ ? held_round_->record.round : 0;
  if (action.round < held || action.round <= restarted_round_) return Receipt::kKnown;
  highest_round_ = std::max(highest_round_, action.round);
  restarted_round_ = action.round;
  return Receipt::kDeliver;
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Waiting&) {
  is_known_ = true;
  return is_evicted_ ? Receipt::kKnown : Receipt::kDeliver;
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Resumed&) {
  is_known_ = true;
  return Receipt::kKnown;
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Evicted& action) {
  highest_round_ = std::max(highest_round_, action.round);
  if (is_evicted_ || has_ended()) return Receipt::kKnown;
  if (phase_ == rdzv::NodePhase::kDone && !was_evicted_while_done_) {
    // The node was lost in the exit barrier after its workers were done; it may resume there once.
    was_evicted_while_done_ = true;
    return Receipt::kResume;
  }
  is_known_ = false;
  is_evicted_ = true;
  close_.reset();
  unacknowledged_since_.reset();
  return Receipt::kDeliver;
}

std::optional<rdzv::Evicted> SessionOutbox::displace(const std::string& reason) {
  const bool has_round = held_round_ && phase_ != rdzv::NodePhase::kJoined;
  is_known_ = was_join_sent_ = was_evicted_while_done_ = false;
  was_displaced_ = true;
  held_round_.reset();  // its number says nothing about the rounds of the other job
  failure_.reset();
  close_.reset();
  unacknowledged_since_.reset();
  if (!join_) return std::nullopt;
  join_->node.previous_rank = -1;
  join_->node.hosts_coordinator = false;
  join_->node.held.clear();  // of another training
  join_->node.highest_round = std::max(join_->node.highest_round, highest_round_);
  if (!has_round || leave_ || has_ended() || is_evicted_) return std::nullopt;
  is_evicted_ = true;
  phase_ = rdzv::NodePhase::kJoined;
  return rdzv::Evicted{join_->node.id, highest_round_, reason, true};
}

SessionOutbox::Receipt SessionOutbox::end_with(End end) {
  const bool is_first = !has_ended();
  if (is_first || std::holds_alternative<rdzv::Closed>(end)) end_ = std::move(end);
  return is_first ? Receipt::kDeliver : Receipt::kKnown;
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Refused& action) { return end_with(action); }

SessionOutbox::Receipt SessionOutbox::on(const rdzv::TimedOut& action) {
  is_known_ = false;
  return end_with(action);
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::Closed& action) {
  is_known_ = true;
  close_.reset();
  return end_with(action);
}

SessionOutbox::Receipt SessionOutbox::on(const rdzv::RoundOver& action) {
  if (action.round <= round_over_ || action.round > highest_round_) return Receipt::kKnown;
  round_over_ = action.round;
  return Receipt::kDeliver;
}

}  // namespace elastic::core
