// Sessions that come back, and a coordinator that came back empty and rebuilds the round from them.
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

#include "core/rendezvous/rendezvous_machine.h"

namespace elastic::core {
namespace {

NodeId addressee(const RendezvousAction& action) {
  return std::visit([](const auto& one) { return one.to; }, action);
}

bool is_sound(const HeldRound& held, int nodes_max) {
  const RoundRecord& record = held.record;
  return record.round > 0 && record.round <= kRoundMax && record.nodes >= 1 &&
         record.nodes <= nodes_max && held.group_rank >= 0 && held.group_rank < record.nodes &&
         record.master_addr.size() <= kNodeTextBytesMax && record.restarts >= 0 &&
         record.membership_changes >= 0;
}

}  // namespace

void RendezvousMachine::on(const rdzv::Resume& event) {
  const NodeId id = event.node.id;
  Status fault = check_join(event.node, event.settings);
  if (fault.ok() && event.last && !is_sound(*event.last, settings_.max_nodes)) {
    fault = Status(StatusCode::kInvalidArgument, "resume: the round it holds cannot be");
  }
  if (!fault.ok()) {
    emit(rdzv::Refused{id, std::move(fault)});
    return;
  }
  if (phase_ == RendezvousPhase::kClosed && answer_closed(event)) return;
  if (previous_result_ && event.last && event.last->record.generation < record_.generation) {
    emit(rdzv::Closed{id, previous_result_});  // it speaks of a job that has ended
    return;
  }
  const std::uint64_t held = event.last ? event.last->record.round : 0;
  has_resumes_ = true;
  highest_seen_ = std::max({highest_seen_, event.node.highest_round, held});
  const std::size_t before = out_->size();

  if (held > record_.round && is_fresh_) {
    restore_round(event);
  } else if (Node* node = find(id)) {
    record_activity(*node);
    if (!update_from_resume(*node, event)) {
      depart(id, true, "what it resumed with does not follow from what it had said");
    }
  } else if (held > 0 && held == record_.round && event.last->record == record_ &&
             members_[static_cast<std::size_t>(event.last->group_rank)].fate ==
                 MemberFate::kMissing) {
    restore_member(event);
  } else if (event.phase == NodePhase::kJoined) {
    admit(event.node);
    if (Node* admitted = find(id)) admitted->is_newcomer = false;
    return;
  } else if (event.phase == NodePhase::kDone && has_finished(id, held)) {
    // Its session was lost in the barrier: it may wait there again.
    change(insert(event.node, NodePhase::kDone), [&](Node& one) { one.done_round = held; });
  } else {
    send_evicted(id);
    return;
  }
  advance();

  const bool is_answered =
      std::any_of(out_->begin() + static_cast<std::ptrdiff_t>(before), out_->end(),
                  [&](const auto& action) { return addressee(action) == id; });
  if (!is_answered) remind(id, held, now_, out_);
}

// False: the job that was closed is over for this node too, and the next generation has begun.
bool RendezvousMachine::answer_closed(const rdzv::Resume& event) {
  const NodeId id = event.node.id;
  if (Node* node = find(id)) {
    record_activity(*node);
    if (event.phase != NodePhase::kWorking) stop(*node);
    remind(id, record_.round, now_, out_);
    return true;
  }
  const bool is_of_next_job = event.last && event.last->record.generation > record_.generation;
  if (!is_fresh_ || !is_of_next_job) {
    emit(rdzv::Closed{id, result_});
    return true;
  }
  // The stored state is of the job before.
  dismiss_nodes_of_last_job();
  start_generation(event.settings);
  is_fresh_ = true;
  return false;
}

bool RendezvousMachine::has_finished(const NodeId& id, std::uint64_t round) const {
  const FormerNode* known = former_node(id);
  return known != nullptr && round > 0 && known->done_round == round;
}

// What is known of an older round. A node that has not resumed may be a member of the newer one.
void RendezvousMachine::drop_stale_round(const NodeId& resumed) {
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
  for (const NodeId& id : stale) depart(id, true, "its round was superseded");
}

void RendezvousMachine::restore_round(const rdzv::Resume& event) {
  drop_stale_round(event.node.id);
  if (event.last->record.generation != record_.generation) restarts_ = membership_changes_ = 0;
  record_ = event.last->record;
  phase_ = RendezvousPhase::kRunning;
  is_first_ = false;
  is_adopted_ = true;
  finishers_departed_ = 0;
  restarts_ = std::max(restarts_, record_.restarts);
  membership_changes_ = std::max(membership_changes_, record_.membership_changes);
  round_started_ = make_shared_instant(now_);
  end_ = {};
  missing_ = record_.nodes;
  members_.assign(static_cast<std::size_t>(record_.nodes), RoundMember{});
  for (int rank = 0; rank < record_.nodes; ++rank) {
    RoundMember& member = members_[static_cast<std::size_t>(rank)];
    member.name = "the node of rank " + std::to_string(rank);
    member.fate = MemberFate::kMissing;
  }
  for (const Timer timer : {Timer::kLastCall, Timer::kGrowth, Timer::kBelowMinNodes, Timer::kShrink,
                            Timer::kVerdict, Timer::kResend, Timer::kBackoff}) {
    disarm(timer);
  }
  arm_after(Timer::kRebuild, settings_.store_grace);
  recount();
  restore_member(event);
}

void RendezvousMachine::mark_host_lost() {
  const int host = record_.coordinator_rank;
  if (missing_ == 0 || host < 0 || host >= record_.nodes) return;
  RoundMember& member = members_[static_cast<std::size_t>(host)];
  if (member.fate != MemberFate::kMissing) return;
  // Where the loss would end the job, the agent that was started in its place has time to join.
  const bool has_restarts =
      settings_.on_loss == LossPolicy::kReplace && restarts_ < settings_.max_restarts;
  const bool is_affordable = available_nodes() > settings_.min_nodes || has_restarts;
  if (!is_affordable && now_ < at(Timer::kStartHold)) return;
  member.fate = MemberFate::kLost;
  if (--missing_ == 0) finish_rebuild();
  member_departed(member.name, true, "it hosted the coordinator, which was restarted");
}

void RendezvousMachine::finish_rebuild() {
  disarm(Timer::kRebuild);
  is_fresh_ = false;
  first_waiting_at_ = last_waiting_ =
      make_shared_instant(now_);  // whoever joined meanwhile settles from here
}

void RendezvousMachine::restore_member(const rdzv::Resume& event) {
  const auto rank = static_cast<std::size_t>(event.last->group_rank);
  const NodeInfo& info = event.node;
  Node& node = insert(info, NodePhase::kWorking);
  change(node, [&](Node& one) { one.rank = event.last->group_rank; });
  members_[rank] = {info.id,   info.name,           info.address, info.local_world_size,
                    info.role, MemberFate::kPresent};
  if (--missing_ == 0) finish_rebuild();
  replay(node, event);
  const bool is_behind = node.phase == NodePhase::kWorking || node.phase == NodePhase::kStopped;
  if (phase_ == RendezvousPhase::kForming && is_behind && node.deadline.number == 0) {
    send_restart(node);
  }
}

bool RendezvousMachine::update_from_resume(Node& node, const rdzv::Resume& event) {
  const std::uint64_t held = event.last ? event.last->record.round : 0;
  if (held > record_.round) return false;
  const NodePhase said = event.phase;
  const bool is_joining = said == NodePhase::kJoined;
  switch (node.phase) {
    case NodePhase::kJoined:
      if (is_joining) enqueue(node, event.node);
      return is_joining;
    case NodePhase::kWorking:
      if (held == record_.round) {
        replay(node, event);
        return true;
      }
      // It never heard of this round, and so has no workers of it: it is told now, or joins the
      // next.
      if (is_joining && phase_ == RendezvousPhase::kForming) enqueue(node, event.node);
      return is_joining;
    case NodePhase::kStopped:
      if (is_joining) enqueue(node, event.node);
      return said != NodePhase::kWorking;
    case NodePhase::kDone:
      if (said == NodePhase::kDone) return true;
      if (said == NodePhase::kWorking || !is_fresh_) return false;
      resume_stopped(node, event);
      return true;
  }
  return false;
}

// It was called back after the state was stored in which it is done: so the round has ended.
void RendezvousMachine::resume_stopped(Node& node, const rdzv::Resume& event) {
  change(node, [](Node& one) { one.phase = NodePhase::kStopped; });
  if (phase_ == RendezvousPhase::kRunning && node.done_round == record_.round) {
    end_round(rdzv::RestartCause::kRejoin, node.info.name + " was called back");
  }
  if (event.phase == NodePhase::kJoined) {
    enqueue(node, event.node);
  } else if (node.deadline.number == 0) {
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
  for (RoundMember& member : members_) {
    if (member.fate != MemberFate::kMissing) continue;
    member.fate = MemberFate::kLost;
    if (names.empty()) names = member.name;
  }
  if (missing_ > 1) names += " and " + std::to_string(missing_ - 1) + " more";
  if (missing_ == 0) return;
  missing_ = 0;
  finish_rebuild();
  member_departed(names, true, reason);
}

void RendezvousMachine::remind(const NodeId& id, std::uint64_t record_activity, Instant now,
                               std::vector<RendezvousAction>* actions) const {
  const Node* node = find(id);
  const auto say = [&](auto action) { actions->push_back(std::move(action)); };
  if (phase_ == RendezvousPhase::kClosed) {
    say(rdzv::Closed{id, result_});
    if (node != nullptr && node->rank == 0 && end_.is_round_over_sent) {
      say(rdzv::RoundOver{id, record_.round});
    }
    return;
  }
  if (node == nullptr) {
    const FormerNode* known = former_node(id);
    if (known != nullptr && known->timed_out) {
      say(rdzv::TimedOut{id, known->reason});
    } else {
      say(eviction_of(id));
    }
    return;
  }
  if (end_.is_round_over_sent && node->rank == 0 && phase_ == RendezvousPhase::kForming) {
    say(rdzv::RoundOver{id, record_.round});
  }
  const bool is_member = node->phase == NodePhase::kWorking || node->phase == NodePhase::kStopped;
  if (!is_member) {
    say(rdzv::Waiting{id, describe_waiting(now, *node)});
  } else if (phase_ == RendezvousPhase::kForming) {
    say(rdzv::Restart{id, record_.round, end_.cause, end_.reason, grace_of(*node)});
  } else if (record_activity < record_.round) {
    const auto rank = static_cast<std::size_t>(node->rank);
    say(rdzv::Round{
        id, std::make_shared<const RoundRecord>(record_),
        assignment_of(node->rank, node->info.local_world_size, ranks_of(members_)[rank])});
  } else {
    say(rdzv::Resumed{id, record_.round});
  }
}

}  // namespace elastic::core
