// Theory of operation
//
// A job forms rounds. Each connected node is in one of four states (rendezvous_events.h): it has
// joined and wants the next round, it works in the current one, its workers are stopped, or it is
// done. The job itself is in one of three phases:
//
//   forming   no round runs. Before the first round nodes join until max_nodes have joined, or
//             min_nodes and the last call has ended. After a round has ended its members stop
//             their workers and join again; when all have joined, left, or were declared lost, the
//             next round is complete.
//   running   members work. A failed worker, a lost member, or new nodes after the quiet period end
//             the round: every member receives Restart, and the phase is forming again.
//   closed    the result is known and is sent to every node.
//
// A round's end has one cause and costs at most one restart. Failed workers are charged when no
// member works, or after node_timeout: until then the loss of a member may explain them, because
// the collectives of its peers break before the loss of a host can be detected. Waiting
// for the workers to stop also lets the earliest evidence arrive, so that all nodes receive the
// same root cause.
//
// An event changes nodes first; advance() then looks at the counts and does what has become
// possible: charge the failure, end the job, recall finished nodes, complete a round.
// Counts are kept by count(), so that a join, a heartbeat or a report costs O(log n); only
// the begin and the end of a round visit all nodes.
//
// Timers are Instants; next_deadline() returns the earliest. Only Tick evaluates timers and
// silence. A caller that was suspended reports it (ClockGap); deadlines then move by that time.

#include "core/rendezvous/rendezvous_machine.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/text.h"

namespace elastic::core {
namespace {

std::string gave_up_after(Duration limit) {
  return "; gave up after " + duration_text(limit) +
         ": start the missing nodes, or raise join_timeout";
}

}  // namespace

RendezvousMachine::RendezvousMachine(JobSettings settings, Instant now, Duration start_hold)
    : settings_(std::move(settings)),
      liveness_(settings_.node_timeout, settings_.reconnect_grace),
      now_(now) {
  ELASTIC_CHECK(settings_.validate().ok());
  rules_ = core::failure_rules(settings_);
  stop_without_progress_ = stop_without_progress(settings_);
  arm_after(Timer::kStart, start_hold);
}

void RendezvousMachine::step(const RendezvousEvent& event, Instant now,
                             std::vector<RendezvousAction>* actions) {
  now_ = std::max(now_, now);
  out_ = actions;
  std::visit([this](const auto& one) { on(one); }, event);
  if (is_next_job_due_) begin_next_job();
  out_ = nullptr;
}

NodeRow RendezvousMachine::row_of(const NodeId& id) const {
  const Node* node = find(id);
  if (is_closed()) {
    return node == nullptr ? NodeRow::kAbsentClosed : NodeRow::kPresentClosed;
  }
  if (node == nullptr) return NodeRow::kAbsent;
  switch (node->phase) {
    case NodePhase::kJoined: return NodeRow::kJoined;
    case NodePhase::kWorking: return NodeRow::kWorking;
    case NodePhase::kStopped: return NodeRow::kStopped;
    case NodePhase::kDone: return NodeRow::kDone;
  }
  return NodeRow::kAbsent;
}

std::optional<Response> RendezvousMachine::respond(const NodeId& id, NodeMessage message,
                                                   std::optional<std::uint64_t> round) {
  const NodeRow row = row_of(id);
  Node* node = find(id);
  if (node != nullptr && is_from_node(message)) record_activity(*node);
  Response response = response_to(row, message);
  // I5: a message of another round changes nothing.
  const bool is_stale = round && *round != round_.record.round;
  if (is_stale && row != NodeRow::kAbsent && row != NodeRow::kAbsentClosed) {
    response = Response::kIgnore;
  }
  switch (response) {
    case Response::kEvict:
      // The workers of a node that leaves end later, so its Gone is expected. Any other message
      // comes from a node that does not know that it was removed.
      if (message != NodeMessage::kGone || !has_left(id)) send_evicted(id);
      return std::nullopt;
    case Response::kSendResult: emit(rdzv::Closed{id, result_}); return std::nullopt;
    case Response::kResend: send_waiting(*node); return std::nullopt;
    case Response::kAlive:
    case Response::kIgnore: return std::nullopt;
    default: return response;
  }
}

void RendezvousMachine::on(const rdzv::Join& event) {
  if (is_of_last_job(event.node)) {
    emit(rdzv::Closed{event.node.id, previous_result_});
    return;
  }
  Status fault = check_join(event.node, event.settings);
  if (fault.ok()) fault = check_surplus(event.node, event.settings);
  if (!fault.ok()) return refuse(event.node, std::move(fault));
  const bool is_crossing = is_sent_too_early(event.node);
  if (begins_next_job(event.node) && !is_crossing) {
    dismiss_nodes_of_last_job();
    start_generation(event.settings);
  }
  note_program(event.node, event.settings);
  highest_seen_ = std::max(highest_seen_, event.node.highest_round);
  note_answer(event.node);
  const auto response = respond(event.node.id, NodeMessage::kJoin);
  if (!response) return;
  if (is_closed()) {
    emit(rdzv::Closed{event.node.id, result_});
  } else if (is_crossing) {
    remind(event.node.id, event.node.highest_round);
  } else if (*response == Response::kAdmit) {
    admit(event.node);
  } else {
    enqueue(*find(event.node.id), event.node);
  }
}

// A join that was sent before the node could receive the round of which it is, or was, a member
// requests only that round, and implies nothing about its workers.
bool RendezvousMachine::is_sent_too_early(const NodeInfo& info) const {
  if (const Node* node = find(info.id)) {
    return node->phase == NodePhase::kWorking && info.highest_round < round_.record.round;
  }
  const FormerNode* known = former_nodes_.find(info.id);
  return known != nullptr && known->lost && info.highest_round < known->round;
}

void RendezvousMachine::on(const rdzv::Heartbeat& event) {
  respond(event.node, NodeMessage::kHeartbeat);
}

void RendezvousMachine::on(const rdzv::Failed& event) {
  if (!respond(event.node, NodeMessage::kFailed, event.round)) return;
  fail(*find(event.node), event.failure);
  advance();
}

void RendezvousMachine::on(const rdzv::Gone& event) {
  if (!respond(event.node, NodeMessage::kGone, event.round)) return;
  stop(*find(event.node));
  advance();
}

void RendezvousMachine::on(const rdzv::Done& event) {
  const auto response = respond(event.node, NodeMessage::kDone, event.round);
  if (!response) return;
  if (*response == Response::kStop) {  // the job is closed: its success changes nothing
    stop(*find(event.node));
    return;
  }
  finish(*find(event.node));
  advance();
  const Node* node = find(event.node);
  if (!is_closed() && node->phase == NodePhase::kDone) send_waiting(*node);
}

void RendezvousMachine::on(const rdzv::Leave& event) {
  if (!respond(event.node, NodeMessage::kLeave)) return;
  depart(event.node, false, event.reason.substr(0, kMessageBytesMax), event.is_planned,
         event.exit_code);
  advance();
}

void RendezvousMachine::on(const rdzv::Close& event) {
  if (event.node == NodeId{}) {
    // Workers that have failed end a job without a restart, whatever else ends it now.
    if (!is_closed() && std::exchange(round_.end.verdict_pending, false)) {
      judge_failure();
    }
    if (!is_closed()) close(event.result);
    return;
  }
  if (!respond(event.node, NodeMessage::kClose)) return;
  const FormerNode* known = former_nodes_.find(event.node);
  if (find(event.node) == nullptr && known != nullptr && known->lost) {
    send_evicted(event.node);  // I8: a lost node cannot decide for the job
  } else {
    JobResult result = event.result;
    if (result.cause == JobCause::kWorker) result.node_id = event.node;
    // A job succeeds only if every rank of a round exited with 0.
    if (result.outcome == JobOutcome::kSucceeded) result.outcome = JobOutcome::kClosed;
    close(result);
  }
}

void RendezvousMachine::on(const rdzv::SessionLost& event) {
  const auto response = respond(event.node, NodeMessage::kSessionLost);
  if (!response) return;
  if (*response == Response::kLeave) {
    depart(event.node, true, "its session was closed");
  } else {
    suspect(*find(event.node), event.least_grace);
  }
}

void RendezvousMachine::on(const rdzv::ProcessEnded& event) {
  const auto response = respond(event.node, NodeMessage::kProcessEnded);
  if (!response || !find(event.node)->suspect) return;
  depart(event.node, true, "its session was closed and its agent has ended");
  advance();
}

void RendezvousMachine::on(const rdzv::Tick&) {
  timers_checked_at_ = now_;
  if (host_gate_ != nullptr && host_gate_->expire(now_)) mark_excluded();
  for (const Liveness::Loss& loss : liveness_.take_lost(now_)) {
    const Node* node = find(loss.node);
    depart(loss.node, true,
           node != nullptr && node->is_awaited ? await_reason(loss.node)
           : loss.by_close
               ? "its session was closed and did not resume within " + duration_text(loss.grace)
               : "no sign of life for " + duration_text(loss.silence));
  }
  if (is_closed()) return;
  check_node_deadlines();
  check_timers();
  advance();
  repeat_waiting();
}

void RendezvousMachine::on(const rdzv::ClockGap& event) {
  if (!is_stall(event)) return;
  liveness_.add_gap(event.gap);
  const Instant began = now_ - event.gap;
  for (StoredInstant& timer : round_.timers) {
    if (timer.at > began) timer.at = add_saturating(timer.at, event.gap);
  }
  for (auto& [id, node] : nodes_) node.deadline.at = add_saturating(node.deadline.at, event.gap);
  for (FormerNode& node : former_nodes_) {
    node.join_deadline.at = add_saturating(node.join_deadline.at, event.gap);
  }
  deadline_check_ = add_saturating(deadline_check_, event.gap);
  if (growth_from_ > began) growth_from_ = add_saturating(growth_from_, event.gap);
  // Nor does a round, or the wait of a node for it, become older.
  for (StoredInstant* const since :
       {&round_.started, &round_.first_waiting_at, &round_.last_waiting_at}) {
    if (since->is_set()) since->at = std::min(add_saturating(since->at, event.gap), now_);
  }
}

void RendezvousMachine::on(const rdzv::HoldGrowth&) {
  if (is_closed() || std::exchange(holds_growth_, true)) return;
  advance();
  if (!round_.is_running) return;
  for (const auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined) send_waiting(node);
  }
}

void RendezvousMachine::on(const rdzv::Grow& event) {
  if (!round_.is_growth_due) return;
  if (may_grow()) {
    grow(event.why);
  } else {
    check_growth();  // a node that waits is suspect: it is due again when the node has resumed
  }
}

void RendezvousMachine::on(const rdzv::HostsChanged&) {
  mark_excluded();
  advance();
}

// It may come before the first join, and so before the settings.
void RendezvousMachine::on(const rdzv::HostBad& event) {
  if (!round_.is_first) return;
  bad_host_ = event.host;
  shorten_joins();
}

// A node of the first round is refused or on a bad host, and no other one is started for it. A
// spare node may still take its place.
bool RendezvousMachine::lacks_node() const {
  const bool is_known = !bad_host_.empty() || !refused_.empty();
  return is_known && round_.is_first && settings_.on_loss == LossPolicy::kFail;
}

Duration RendezvousMachine::join_limit() const {
  return lacks_node() ? std::min(settings_.join_timeout, settings_.last_call_timeout)
                      : settings_.join_timeout;
}

void RendezvousMachine::shorten_joins() {
  if (!lacks_node()) return;
  const Instant limit = add_saturating(now_, join_limit());
  for (auto& [id, node] : nodes_) {
    if (node.phase != NodePhase::kJoined) continue;
    if (limit < node.deadline.at) set_deadline(node, stored(limit));
    send_waiting(node);
  }
}

void RendezvousMachine::set_deadline(Node& node, StoredInstant deadline) {
  node.deadline = deadline;
  deadline_check_ = std::min(deadline_check_, deadline.at);
}

std::vector<NodeId> RendezvousMachine::overdue_nodes() {
  std::vector<NodeId> overdue;
  if (now_ < deadline_check_) return overdue;
  deadline_check_ = Instant::max();
  for (auto& [id, node] : nodes_) {
    const bool is_joining = node.phase == NodePhase::kJoined;
    if (is_joining && !round_.is_first) node.deadline = {};
    if (node.is_awaited) continue;  // record_activity() checks it again
    // With min_nodes the last call ends the wait; below that the deadline is checked again.
    if (node.deadline.at <= now_ && !(is_joining && round_.tally.joined >= settings_.min_nodes)) {
      overdue.push_back(id);
    } else if (node.deadline.at > now_) {
      deadline_check_ = std::min(deadline_check_, node.deadline.at);
    }
  }
  return overdue;
}

void RendezvousMachine::check_node_deadlines() {
  // The removal of a node can make others overdue.
  for (auto overdue = overdue_nodes(); !overdue.empty(); overdue = overdue_nodes()) {
    for (const NodeId& id : overdue) {
      const Node* node = find(id);
      if (is_closed() || node == nullptr) return;
      expire_node(*node);
    }
  }
}

void RendezvousMachine::expire_node(const Node& node) {
  const NodeId id = node.info.id;
  if (node.phase == NodePhase::kJoined) {
    const std::string why =
        describe_state(now_, false).text +
        (lacks_node() ? "; lost nodes are not replaced" : gave_up_after(settings_.join_timeout));
    emit(rdzv::TimedOut{id, why});
    depart(id, false, why);
    former_nodes_.newest().timed_out = true;
  } else if (node.phase == NodePhase::kWorking) {
    depart(id, true,
           "it did not stop its workers within its grace and " + duration_text(kStopMargin));
  } else {
    depart(id, true, "it did not join again within its grace and " + duration_text(kStopMargin));
  }
}

void RendezvousMachine::check_timers() {
  if (is_closed()) return;
  if (round_.take_due(Timer::kRebuild, now_)) {
    mark_missing_lost("did not resume within " + duration_text(settings_.store_grace));
  }
  if (phase() == RendezvousPhase::kForming && round_.take_due(Timer::kVerdict, now_))
    check_verdict();
  if (phase() == RendezvousPhase::kForming && round_.take_due(Timer::kBelowMinNodes, now_)) {
    JobResult result;
    result.outcome = JobOutcome::kFailed;
    result.cause = JobCause::kTooFewNodes;
    result.exit_code = round_.end.exit_code;
    result.lost = round_.lost_names();
    for (const RoundMember& member : round_.members) {
      if (member.fate != MemberFate::kPresent) result.node = member.name;
    }
    result.message = describe_state(now_, false).text + gave_up_after(settings_.join_timeout);
    close(std::move(result));
  }
}

// After all else: the round that nodes wait for may have just begun.
void RendezvousMachine::repeat_waiting() {
  if (phase() != RendezvousPhase::kForming || !round_.take_due(Timer::kResend, now_)) return;
  for (const auto& [id, node] : nodes_) {
    if (node.phase == NodePhase::kJoined) send_waiting(node);
  }
  if (round_.tally.joined > 0) arm_after(Timer::kResend, kWaitingMessageInterval);
}

std::optional<Instant> RendezvousMachine::next_deadline() const {
  Instant next = liveness_.next_deadline().value_or(Instant::max());
  if (host_gate_ != nullptr) next = std::min(next, host_gate_->next_expiry());
  if (!is_closed()) {
    next = std::min(next, deadline_check_);
    for (const StoredInstant& timer : round_.timers) {
      if (timer.at > timers_checked_at_)
        next = std::min(next, timer.at);  // an earlier one was checked already
    }
    if (round_.may_be_stale && round_.missing > 0 && replaced_from() > timers_checked_at_)
      next = std::min(next, replaced_from());
  }
  if (next == Instant::max()) return std::nullopt;
  return next;
}

}  // namespace elastic::core
