// Sessions that resume, and a coordinator without state that rebuilds the round from them.
//
// A node that resumes reports where it is. What it did while it was not connected is replayed
// through the same rules as if it had just been reported; what the machine sent meanwhile is sent
// again. A machine that has formed no round itself adopts the newest round that a node holds: the
// ranks of that round which have not resumed are missing, no node is admitted, and after
// store_grace the missing are lost. This holds for an empty machine and for one that was restored:
// a stored state can be older than what the nodes know. Its nodes are awaited for store_grace.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/fields.h"
#include "core/base/text.h"
#include "core/rendezvous/rendezvous_events.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

// No job forms so many rounds or generations beyond those that are known here.
bool is_sound(const HeldRound& held, int nodes_max, const RoundRecord& current) {
  const RoundRecord& record = held.record;
  return record.round > 0 && record.round <= std::min(kRoundMax, current.round + kRoundLeadMax) &&
         record.generation <= std::uint64_t{current.generation} + kGenerationLeadMax &&
         record.term <= kRoundMax && record.nodes >= 1 && record.nodes <= nodes_max &&
         held.group_rank >= 0 && held.group_rank < record.nodes &&
         record.coordinator_rank < record.nodes && record.master_addr.size() <= kNodeTextBytesMax &&
         is_counter(record.restarts) && is_counter(record.membership_changes);
}

}  // namespace

// What is stored says nothing of what has happened since. `hold_until`: no round completes before.
Status RendezvousMachine::take_over(std::string_view bytes, const RendezvousSuccession& succession,
                                    Instant hold_until, Instant now) {
  if (Status fault = load(bytes, now); !fault.ok()) return fault;
  succession_ = succession;
  is_one_program_ = false;  // not known
  has_resumes_ = true;
  arm(Timer::kStart, hold_until);
  for (auto& [id, node] : nodes_) {
    change(node, [](Node& one) { one.suspect = one.is_awaited = true; });
    liveness_.await(id, add_saturating(now_, resume_limit()));
  }
  return {};
}

Status RendezvousMachine::restore(std::string_view bytes, Instant now) {
  return take_over(bytes, {}, round_.at(Timer::kStart), now);
}

Status RendezvousMachine::succeed(std::string_view bytes, const RendezvousSuccession& succession,
                                  Instant now) {
  if (Status fault = take_over(bytes, succession, now, now); !fault.ok()) return fault;
  for (auto& [id, node] : nodes_) node.info.hosts_coordinator = id == succession.successor;
  if (find(succession.lost_incumbent) != nullptr) liveness_.await(succession.lost_incumbent, now_);
  return {};
}

bool RendezvousMachine::has_resumed() const {
  return is_closed() || std::any_of(nodes_.begin(), nodes_.end(),
                                    [](const auto& one) { return !one.second.is_awaited; });
}

void RendezvousMachine::begin_anew(const JobSettings& settings, Instant now) {
  now_ = std::max(now_, now);
  nodes_.clear();
  static_rank_owners_.clear();
  former_nodes_.clear();
  start_generation(settings);
  has_resumes_ = false;
}

std::string RendezvousMachine::await_reason(const NodeId& id) const {
  if (id == succession_.lost_incumbent) return "it hosted the coordinator, which was lost";
  return "it did not resume within " + duration_text(resume_limit()) +
         " after the coordinator was " + (was_elected() ? "lost" : "restarted");
}

Duration RendezvousMachine::takeover_limit() const {
  const bool knows_earlier = std::max(highest_seen_, round_.record.round) > 0;
  const bool is_of_earlier = round_.is_adopted() || (round_.may_adopt() && knows_earlier);
  return is_of_earlier ? resume_limit() : Duration::zero();
}

Duration RendezvousMachine::succession_limit() const {
  return std::min(settings_.node_timeout, kFar) + kSuccessionMargin;
}

Duration RendezvousMachine::resume_limit() const {
  return was_elected() ? succession_limit() : settings_.store_grace;
}

void RendezvousMachine::on(const rdzv::Resume& event) {
  const NodeId id = event.node.id;
  Status fault = check_join(event.node, event.settings);
  if (fault.ok() && event.last && !is_sound(*event.last, settings_.max_nodes, round_.record)) {
    fault =
        Status(StatusCode::kInvalidArgument, "resume: the round that the node holds is invalid");
  }
  if (!fault.ok()) {
    emit(rdzv::Refused{id, std::move(fault)});
    return;
  }
  if (is_closed() && answer_closed(event)) return;
  if (previous_result_ && event.last && event.last->record.generation < round_.record.generation) {
    emit(rdzv::Closed{id, previous_result_});  // it is a node of a job that has ended
    return;
  }
  const std::uint64_t held = event.last ? event.last->record.round : 0;
  has_resumes_ = true;
  note_program(event.node, event.settings);
  highest_seen_ = std::max({highest_seen_, event.node.highest_round, held});
  const std::size_t before = out_->size();

  if (held > round_.record.round && round_.may_adopt()) {
    restore_round(event);
  } else if (Node* node = find(id)) {
    record_activity(*node);
    if (!update_from_resume(*node, event)) {
      depart(id, true, "its resume contradicts what it reported before");
    }
  } else if (held > 0 && held == round_.record.round && event.last->record == round_.record &&
             round_.member(event.last->group_rank).fate == MemberFate::kMissing) {
    if (!may_take_static_rank(event.node)) return;
    restore_member(event);
  } else if (event.phase == NodePhase::kJoined) {
    admit(event.node);
    if (Node* admitted = find(id)) admitted->is_newcomer = false;
    return;
  } else if (event.phase == NodePhase::kDone && has_finished(id, held)) {
    // Its session was lost in the exit barrier: it may wait there again.
    if (!may_take_static_rank(event.node)) return;
    change(insert(event.node, NodePhase::kDone), [&](Node& one) { one.done_round = held; });
  } else {
    send_evicted(id);
    return;
  }
  advance();

  const bool is_answered =
      std::any_of(out_->begin() + static_cast<std::ptrdiff_t>(before), out_->end(),
                  [&](const auto& action) { return addressee(action) == id; });
  if (!is_answered) remind(id, held);
}

// False: the job that was closed is over for this node too, and the next generation has begun.
bool RendezvousMachine::answer_closed(const rdzv::Resume& event) {
  const NodeId id = event.node.id;
  if (Node* node = find(id)) {
    record_activity(*node);
    if (event.phase != NodePhase::kWorking) stop(*node);
    remind(id, round_.record.round);
    return true;
  }
  const bool is_of_next_job =
      event.last && event.last->record.generation > round_.record.generation;
  if (!round_.may_adopt() || !is_of_next_job) {
    emit(rdzv::Closed{id, result_});
    return true;
  }
  // The stored state is of the job before.
  dismiss_nodes_of_last_job();
  start_generation(event.settings);
  round_.origin = RoundOrigin::kUnknown;
  return false;
}

// A node that resumes its round, and is not known here, must not have another node's rank.
bool RendezvousMachine::may_take_static_rank(const NodeInfo& node) {
  Status fault = check_static_rank(node, true);
  if (!fault.ok()) {
    emit(rdzv::Refused{node.id, std::move(fault)});
  } else if (is_closed()) {  // the loss of the other one closed the job
    emit(rdzv::Closed{node.id, result_});
  } else {
    return true;
  }
  return false;
}

bool RendezvousMachine::has_finished(const NodeId& id, std::uint64_t round) const {
  const FormerNode* known = former_nodes_.find(id);
  return known != nullptr && round > 0 && known->done_round == round;
}

// Drops the older round. A node that has not resumed may be a member of the newer one.
void RendezvousMachine::drop_stale_round(const NodeId& resumed, const std::string& why) {
  std::vector<NodeId> stale;
  for (auto one = nodes_.begin(); one != nodes_.end();) {
    const auto here = one++;
    Node& node = here->second;
    if (node.is_awaited || here->first == resumed) {
      take_out(here);
      continue;
    }
    if (node.phase == NodePhase::kWorking || node.phase == NodePhase::kStopped) {
      stale.push_back(here->first);
    }
    change(node, [](Node& kept) { kept.rank = -1; });
  }
  for (const NodeId& id : stale) depart(id, true, why);
}

void RendezvousMachine::restore_round(const rdzv::Resume& event) {
  // The stored state is of the job that formed the round a moment later.
  const bool is_of_stored_job = event.last->record.generation == round_.record.generation &&
                                std::any_of(nodes_.begin(), nodes_.end(),
                                            [](const auto& one) { return one.second.is_awaited; });
  drop_stale_round(event.node.id, "its round was superseded");
  if (!may_take_static_rank(event.node)) return;
  if (event.last->record.generation != round_.record.generation)
    restarts_ = membership_changes_ = 0;
  round_.adopt(*event.last, stored(now_));
  round_.may_be_stale = !is_of_stored_job;
  restarts_ = std::max(restarts_, round_.record.restarts);
  membership_changes_ = std::max(membership_changes_, round_.record.membership_changes);
  arm_after(Timer::kRebuild, settings_.store_grace);
  recount();
  restore_member(event);
}

// From then on as many newcomers as the adopted round has members replace it; max_nodes at once.
Instant RendezvousMachine::replaced_from() const {
  return add_saturating(round_.started.at, succession_limit());
}

// A stale agent of an earlier job of this id has resumed first, and the rest of its round is gone:
// a node that knows no round has no other node to wait for.
void RendezvousMachine::check_newcomers() {
  if (!round_.may_be_stale || round_.missing == 0) return;
  const int resumed = round_.size() - round_.missing;
  if (2 * resumed > round_.size()) return;  // that job lives
  const int replacing = std::max(round_.size(), settings_.min_nodes);
  const int needed = now_ < replaced_from() ? settings_.max_nodes : replacing;
  if (round_.tally.joined - round_.tally.joined_suspect < needed) return;
  const auto newcomers = std::count_if(nodes_.begin(), nodes_.end(), [](const auto& one) {
    const Node& node = one.second;
    return node.phase == NodePhase::kJoined && node.is_newcomer && !node.suspect;
  });
  if (newcomers < needed) return;
  drop_stale_round({}, "its round is that of an earlier job of this id");
  is_next_job_due_ = true;
}

void RendezvousMachine::mark_host_lost() {
  const int host = round_.record.coordinator_rank;
  if (round_.missing == 0 || host < 0 || host >= round_.record.nodes) return;
  RoundMember& member = round_.member(host);
  if (member.fate != MemberFate::kMissing) return;
  // If the loss would end the job, wait for the agent that may be started in its place.
  const bool has_restarts =
      settings_.on_loss == LossPolicy::kReplace && restarts_ < settings_.max_restarts;
  const bool is_affordable = available_nodes() > settings_.min_nodes || has_restarts;
  if (!is_affordable && now_ < round_.at(Timer::kStart)) return;
  member.fate = MemberFate::kLost;
  if (--round_.missing == 0) finish_rebuild();
  member_departed(member.name, host_of(member.name), true,
                  "it hosted the coordinator, which was restarted");
}

void RendezvousMachine::finish_rebuild() {
  round_.disarm(Timer::kRebuild);
  round_.origin = round_.is_adopted() ? RoundOrigin::kRebuilt : RoundOrigin::kOwn;
  round_.ranks = ranks_of(round_.members);
  hold_growth_for_reports();
  round_.first_waiting_at = round_.last_waiting_at =
      stored(now_);  // settle counts from here for the nodes that wait
}

void RendezvousMachine::restore_member(const rdzv::Resume& event) {
  const auto rank = static_cast<std::size_t>(event.last->group_rank);
  const NodeInfo& info = event.node;
  Node& node = insert(info, NodePhase::kWorking);
  change(node, [&](Node& one) { one.rank = event.last->group_rank; });
  round_.members[rank] = {info.id,   info.name,           info.address, info.local_world_size,
                          info.role, MemberFate::kPresent};
  round_.ranks.clear();  // until all members are known
  if (--round_.missing == 0) finish_rebuild();
  replay(node, event);
  Node* const replayed = find(info.id);
  if (replayed == nullptr) return;
  const bool is_behind =
      replayed->phase == NodePhase::kWorking || replayed->phase == NodePhase::kStopped;
  if (phase() == RendezvousPhase::kForming && is_behind && !replayed->deadline.is_set()) {
    send_restart(*replayed);
  }
}

bool RendezvousMachine::update_from_resume(Node& node, const rdzv::Resume& event) {
  const std::uint64_t held = event.last ? event.last->record.round : 0;
  if (held > round_.record.round) return false;
  const NodePhase reported = event.phase;
  const bool is_joining = reported == NodePhase::kJoined;
  switch (node.phase) {
    case NodePhase::kJoined:
      if (is_joining) enqueue(node, event.node);
      return is_joining;
    case NodePhase::kWorking:
      if (held == round_.record.round) {
        replay(node, event);
        return true;
      }
      // It never received this round, and so has no workers of it: it receives it now, or joins
      // the next.
      if (is_joining && phase() == RendezvousPhase::kForming) enqueue(node, event.node);
      return is_joining;
    case NodePhase::kStopped:
      if (is_joining) enqueue(node, event.node);
      return reported != NodePhase::kWorking;
    case NodePhase::kDone:
      if (reported == NodePhase::kDone) return true;
      if (is_joining && !round_.may_adopt()) note_answer(event.node);
      if (is_joining && node.answered_round == round_.record.round) return true;
      if (reported == NodePhase::kWorking || !round_.may_adopt()) return false;
      resume_stopped(node, event);
      return true;
  }
  return false;
}

// It was recalled after the state was stored in which it is done, so the round has ended.
void RendezvousMachine::resume_stopped(Node& node, const rdzv::Resume& event) {
  change(node, [](Node& one) { one.phase = NodePhase::kStopped; });
  if (round_.is_running && node.done_round == round_.record.round) {
    end_round({.reason = node.info.name + " was recalled"});
  }
  if (event.phase == NodePhase::kJoined) {
    enqueue(node, event.node);
  } else if (!node.deadline.is_set()) {
    send_restart(node);
  }
}

void RendezvousMachine::replay(Node& node, const rdzv::Resume& event) {
  if (event.failure) fail(node, *event.failure);
  switch (event.phase) {
    case NodePhase::kWorking: break;
    case NodePhase::kStopped: stop(node); break;
    case NodePhase::kDone:
      if (node.phase == NodePhase::kWorking) finish(node);
      break;
    case NodePhase::kJoined: enqueue(node, event.node); break;
  }
}

void RendezvousMachine::mark_missing_lost(const std::string& reason) {
  std::string names;
  for (RoundMember& member : round_.members) {
    if (member.fate != MemberFate::kMissing) continue;
    member.fate = MemberFate::kLost;
    if (names.empty()) names = member.name;
  }
  if (round_.missing > 1) names += " and " + std::to_string(round_.missing - 1) + " more";
  if (round_.missing == 0) return;
  round_.missing = 0;
  finish_rebuild();
  member_departed(names, "", true, reason);
}

void RendezvousMachine::remind(const NodeId& id, std::uint64_t received) const {
  const Node* node = find(id);
  if (is_closed()) {
    emit(rdzv::Closed{id, result_});
    if (node != nullptr && node->rank == 0 && round_.end.is_round_over_sent) {
      emit(rdzv::RoundOver{id, round_.record.round});
    }
    return;
  }
  if (node == nullptr) {
    const FormerNode* known = former_nodes_.find(id);
    if (known == nullptr || !known->timed_out) return send_evicted(id);
    emit(rdzv::TimedOut{id, known->reason});
    return;
  }
  if (round_.end.is_round_over_sent && node->rank == 0 && phase() == RendezvousPhase::kForming) {
    emit(rdzv::RoundOver{id, round_.record.round});
  }
  const bool is_member = node->phase == NodePhase::kWorking || node->phase == NodePhase::kStopped;
  if (!is_member) {
    send_waiting(*node);
  } else if (phase() == RendezvousPhase::kForming) {
    emit(rdzv::Restart{id, round_.record.round, round_.end.cause, round_.end.reason,
                       grace_of(*node), round_.stop_reason()});
  } else if (received < round_.record.round) {
    emit(round_for(*node, std::make_shared<const RoundRecord>(round_.record)));
  } else {
    emit(rdzv::Resumed{id, round_.record.round});
  }
}

}  // namespace elastic::core
