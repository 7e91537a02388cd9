#pragma once

// What a node's session sends again: the messages that the coordinator must receive.
//
// Pure. Not thread-safe. A part of SessionMachine.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "core/session/session_wire.h"
#include "elastic/time.h"

namespace elastic::core {

// The messages of one node that must be sent again when its session resumes.
//
// The node's statements are stored in the form of a Resume: its phase, the round that it holds, a
// failure, and a leave or a close. So the first message on a new connection replaces all messages
// that were lost with the old one. Until the coordinator has replied once, that message is the Join
// itself, which may be repeated. Failure times are on this process's clock.
//
// Weak point: Participant knows the node's rounds as well (core/rendezvous/participant.h). What is
// delivered here must not be stale there.
class SessionOutbox {
 public:
  // What to do with a received action.
  enum class Receipt : std::uint8_t {
    kDeliver,
    kKnown,   // a repetition, or irrelevant to the node
    kResume,  // the coordinator lost the state of a done node, which resumes
  };

  // Returns the message to send, or nothing if the statement no longer applies. `is_ready`: the
  // message is sent at once.
  std::optional<RendezvousEvent> submit(const NodeStatement& statement, bool is_ready);
  // REQUIRES: !has_left()
  Receipt receive(const RendezvousAction& action);

  // The node's job has dissolved, and it joins another one: nothing of the former job is sent
  // again. Returns what the node is to receive, if it is in a round.
  std::optional<rdzv::Evicted> displace(const std::string& reason);

  // The node joins later, or only reports.
  void introduce(const NodeId& node) { introduced_ = node; }
  bool has_join() const { return join_.has_value(); }

  // facts() is not empty, or the node has introduced itself.
  bool has_facts() const;
  // The first messages on a new connection.
  std::vector<RendezvousEvent> facts();
  // What facts() returns depends on the coordinator's clock.
  bool needs_coordinator_clock() const { return failure_.has_value(); }
  // The message that contains the node's whole state. REQUIRES: a Join was submitted
  rdzv::Resume resume() const;
  // REQUIRES: has_facts()
  NodeId node() const { return join_ ? join_->node.id : close_ ? close_->node : *introduced_; }

  // A message was sent, or is queued for the next connection. `stamp`: see SessionClock::stamp().
  void mark_unacknowledged(Instant stamp) { unacknowledged_since_ = stamp; }
  // The coordinator has received what was sent before `stamp`.
  void acknowledge(Instant stamp);
  std::optional<Instant> unacknowledged_since() const { return unacknowledged_since_; }

  // The node takes part in the job, so the coordinator expects heartbeats.
  bool is_present() const;
  // The node has a part in a round, which a refusal that may pass does not end.
  bool works_in_round() const {
    return is_present() && !has_ended() && held_round_ && phase_ != rdzv::NodePhase::kJoined;
  }
  // It has joined, and no round has begun for it since.
  bool awaits_round() const {
    return is_present() && !has_ended() && phase_ == rdzv::NodePhase::kJoined;
  }
  // A new round for a node that runs one, or has not joined: no coordinator of its job sends it.
  bool contradicts(const rdzv::Round& round) const {
    return round.record->round > highest_round_ && (works_in_round() || !has_joined());
  }
  // REQUIRES: a Join was submitted
  int local_world_size() const { return join_->node.local_world_size; }
  bool has_joined() const { return join_.has_value(); }
  bool was_in_round() const { return held_round_.has_value(); }
  bool has_left() const { return leave_.has_value(); }
  // The node received the result, a refusal or a timeout, and has not joined again.
  bool has_ended() const { return !std::holds_alternative<std::monostate>(end_); }
  // There is nothing left to send or receive.
  bool is_over() const { return has_ended() || (has_left() && !unacknowledged_since_); }

  using End = std::variant<std::monostate, rdzv::Refused, rdzv::TimedOut, rdzv::Closed>;
  const End& end() const { return end_; }
  std::string leave_reason() const { return leave_ ? leave_->reason : ""; }

 private:
  std::optional<RendezvousEvent> record(const rdzv::Join& join, bool is_ready);
  std::optional<RendezvousEvent> record(const rdzv::Failed& failed, bool is_ready);
  std::optional<RendezvousEvent> record(const rdzv::Gone& gone, bool is_ready);
  std::optional<RendezvousEvent> record(const rdzv::Done& done, bool is_ready);
  std::optional<RendezvousEvent> record(const rdzv::Leave& leave, bool is_ready);
  std::optional<RendezvousEvent> record(const rdzv::Close& close, bool is_ready);

  Receipt on(const rdzv::Round& action);
  Receipt on(const rdzv::Restart& action);
  Receipt on(const rdzv::Waiting& action);
  Receipt on(const rdzv::Resumed& action);
  Receipt on(const rdzv::Evicted& action);
  Receipt on(const rdzv::Refused& action);
  Receipt on(const rdzv::TimedOut& action);
  Receipt on(const rdzv::Closed& action);
  Receipt on(const rdzv::RoundOver& action);
  Receipt end_with(End end);
  bool is_current(std::uint64_t round) const;

  std::optional<NodeId> introduced_;
  std::optional<rdzv::Join> join_;
  bool was_join_sent_ = false;
  bool is_known_ = false;    // the coordinator replied, and the node is registered there
  bool is_evicted_ = false;  // and has not joined since
  End end_;
  rdzv::NodePhase phase_ = rdzv::NodePhase::kJoined;
  std::optional<HeldRound> held_round_;
  std::optional<FailureReport> failure_;
  std::optional<rdzv::Leave> leave_;
  std::optional<rdzv::Close> close_;
  std::uint64_t highest_round_ = 0;
  std::uint64_t restarted_round_ = 0;
  std::uint64_t round_over_ = 0;
  bool was_evicted_while_done_ = false;
  bool was_displaced_ = false;  // and had no round since: its rank belongs to another job
  std::optional<Instant> unacknowledged_since_;  // stamp of the last message
};

}  // namespace elastic::core
