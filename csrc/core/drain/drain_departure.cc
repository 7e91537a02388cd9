// Nodes that leave or join the job at an agreed step, while the workers of the others continue in
// the next round (docs/in-place.md): the part of DrainMachine that differs from the stop of the
// whole job.

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/drain/drain_machine.h"

// Theory of operation. The nodes agree on a step as for a stop: a tentative one, which every node
// accepts. It is never committed for the job. A rank that reaches it waits there, between two steps
// and in no collective; when all ranks of all nodes wait, the nodes that leave are released: their
// workers stop at the step, and they leave the job. That ends the round for the rendezvous as any
// leave does. The others are told that the round is over, which ends the wait of their ranks.
//
// A node whose workers have all finished does not leave: it waits for the end of the job. If this
// applies to every node that was to leave, the others continue at once.
//
// Nodes that join: a departure without nodes. The round ends at the step that every rank has
// reached, or at once if a rank has reported no step, or cannot continue. If nodes leave at the
// same time, the round ends with their leave; if these cannot leave, the others still wait for a
// step, in the time that they had. Every node keeps the notice, and repeats it to a
// coordinator that takes over: that one withdraws the step, and begins anew if nodes still wait.
//
// Until the release nothing is final: the step can be withdrawn, and every rank then continues. It
// is withdrawn if the round ends for another reason, if the whole job is to stop, and at the
// deadline. After it only the leave, or the loss, of the nodes that were released can follow. A
// coordinator that takes over between the two finds a node that leaves, and holds the step as
// committed, only if it was released, and then every rank waits.
//
// Notices are sent again after each reconnect, also when their nodes have left, or were not let go,
// long ago. Nodes that are not in the round are not waited for. A notice whose time is over starts
// no new departure. It only makes this coordinator finish or withdraw what an earlier one had
// begun.

namespace elastic::core {

using drain::Order;

constexpr const char* kExpired = "the time to leave is over";

void DrainMachine::note_departure(const drain_event::Noticed& event, Instant deadline) {
  const drain::Departure& wanted = *event.notice.departure;
  if (!is_departure_) begin_departure(event.notice.reason);
  withdraws_ = withdraws_ || wanted.nodes.empty();
  if (event.observer == 0 && is_given_up(event.notice)) deadline = now_;
  // It changes nothing about what is agreed on now.
  if (deadline <= now_ && has_time_ && phase_ != DrainPhase::kAwaitRound) return;
  bool is_meant = false;
  // After a takeover every node repeats the same list.
  const bool is_repeated = wanted.nodes == leaving_;
  for (const NodeId& node : wanted.nodes) {
    // The others of a round that is complete are known.
    if (phase_ != DrainPhase::kAwaitRound && !nodes_.contains(node)) continue;
    is_meant = true;
    if (is_repeated) break;
    if (!is_leaving(node) && leaving_.size() < drain::kLeavingMax) leaving_.push_back(node);
  }
  if (is_meant && deadline > now_) {
    has_time_ = true;
    reason_ = event.notice.reason;
    deadline_ = std::max(deadline_, deadline);
    stops_job_ = stops_job_ || wanted.stops_job;
  }
  if (phase_ != DrainPhase::kAwaitRound) return;
  if (stops_job_) gathers_until_ = add_saturating(now_, kDrainGatherTime);
  begin();
}

void DrainMachine::begin_departure(const std::string& reason) {
  is_departure_ = true;
  phase_ = DrainPhase::kAwaitRound;
  stops_job_ = has_time_ = withdraws_ = false;
  reason_ = reason;
  leaving_.clear();
  released_.clear();
  announced_.clear();
  // A rank may wait at a step of an earlier coordinator: its node is asked in any case.
  deadline_ = add_saturating(now_, kDrainReplyTimeout);
  gathers_until_ = now_;
}

void DrainMachine::on(const drain_event::GrowthDue& event) {
  joining_ = std::max(event.nodes, 1);
  growth_why_ = event.why;
  growth_deadline_ = add_saturating(now_, kDrainGrowthLimit);
  if (phase_ == DrainPhase::kOver) return end_growth();
  // The round ends with it, or it is given up.
  if (is_departure_ && (has_time_ || !leaving_.empty())) return;
  if ((phase_ != DrainPhase::kIdle && !is_departure_) || !can_reach_step()) return end_growth();
  begin_growth();
}

void DrainMachine::begin_growth() {
  begin_departure(joining_text());
  has_time_ = true;
  deadline_ = growth_deadline_;
  begin();
}

void DrainMachine::on(const drain_event::GrowthOff&) {
  joining_ = 0;
  if (!is_growth()) return;
  withdraw();
  end_departure(kNoMember);
}

// A job whose ranks report no steps is not asked for any.
bool DrainMachine::can_reach_step() const {
  return is_complete() && std::all_of(nodes_.begin(), nodes_.end(),
                                      [](const auto& one) { return one.second.reporting > 0; });
}

// The members change in place, at least on some nodes. REQUIRES: they have reported their steps.
bool DrainMachine::can_any_continue() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const auto& one) { return one.second.reply.can_continue; });
}

// The whole job is to stop, although some of its nodes were only to leave.
void DrainMachine::stop_instead(const drain_event::Noticed& event, Instant deadline) {
  if (nodes_.empty() && deadline <= now_) note_takeover(event.resume_limit);
  is_departure_ = false;
  reason_ = event.notice.reason;
  deadline_ = deadline;
  announce("stopping all ranks at an agreed step (" + reason_ + "), within " +
           duration_text(event.notice.left));
  if (phase_ == DrainPhase::kReleased) return;  // the round ends
  if (phase_ == DrainPhase::kProposed || phase_ == DrainPhase::kHolding) withdraw();
  phase_ = DrainPhase::kAwaitRound;
  timer_.reset();
  begin();
}

// REQUIRES: is_complete(). Whether the nodes can be asked now.
bool DrainMachine::prepare_departure() {
  if (!is_departure_) return true;
  const std::vector<NodeId> wanted = leaving_;
  std::erase_if(leaving_, [this](const NodeId& node) { return !nodes_.contains(node); });
  if (leaving_.empty() && !wanted.empty()) {  // one that is back later stays
    given_up_ = wanted;
    given_up_reason_ = reason_;
  }
  if (leaving_.empty() && joining_ == 0) has_time_ = false;
  if (leaving_.empty() && joining_ == 0 && !withdraws_) {
    end_departure(kNoMember);
    return false;
  }
  if (has_time_ && !leaving_.empty())
    announce_once(leaving_names() + " to leave at an agreed step (" + reason_ + ")");
  if (now_ >= gathers_until_) return true;
  timer_ = gathers_until_;
  return false;
}

// REQUIRES: every rank has reported a step. Whether a step can be proposed.
bool DrainMachine::check_departure() {
  if (!is_departure_) return true;
  if (!has_time_) {
    withdraw();
    end_departure(kExpired);
    return false;
  }
  const std::string why = obstacle();
  if (why.empty()) return true;
  if (!stops_job_) {
    give_up_departure(why);
    return false;
  }
  is_departure_ = false;
  announce(why + ": stopping all ranks at an agreed step instead");
  out_->push_back(drain_action::HoldGrowth{});
  return true;
}

std::string DrainMachine::obstacle() const {
  const std::size_t staying = num_staying();
  const auto left = static_cast<int>(staying) + spares_;
  if (staying == 0) return "no node of the round would be left";
  if (left < min_nodes_) {
    return "the job needs " + count_text(min_nodes_, "node") + ", and " + std::to_string(left) +
           " would be left";
  }
  for (const auto& [id, node] : nodes_) {
    if (is_leaving(id) || node.reply.can_continue) continue;
    return "the workers of " + (node.name.empty() ? "a node" : node.name) +
           " cannot continue in another round";
  }
  return "";
}

// Nothing of a node without workers is to be stopped at a step. REQUIRES: the nodes have reported
// their steps, or that they wait.
bool DrainMachine::has_finished(const NodeId& id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ||
         (found->second.reply.reporting == 0 && found->second.reply.num_silent == 0);
}

bool DrainMachine::have_leaving_finished() const {
  return !leaving_.empty() && std::all_of(leaving_.begin(), leaving_.end(),
                                          [this](const NodeId& id) { return has_finished(id); });
}

void DrainMachine::begin_holding() {
  phase_ = DrainPhase::kHolding;
  timer_.reset();
  check_waiting();
}

// Since the step was proposed nodes may have come or gone, and workers may have finished, which
// cannot continue in another round.
void DrainMachine::check_waiting() {
  if (tally_.waiting < nodes_.size()) return;
  if (!obstacle().empty() || have_leaving_finished()) {
    withdraw();
    ask();  // and decide anew
    return;
  }
  std::erase_if(leaving_, [this](const NodeId& id) { return has_finished(id); });
  if (is_growth()) {
    phase_ = DrainPhase::kReleased;
    timer_.reset();
    deadline_ = add_saturating(now_, kDrainReleaseTimeout);
    announce(joining_text() + " at step " + std::to_string(step_) +
             ", which every rank has reached");
    return end_growth();
  }
  release(leaving_);
}

void DrainMachine::release(std::vector<NodeId> nodes) {
  phase_ = DrainPhase::kReleased;
  timer_.reset();
  deadline_ = add_saturating(now_, kDrainReleaseTimeout);
  released_ = std::move(nodes);
  send_release();
  if (step_ == drain::kNoStep) return;  // an earlier coordinator has said it
  const std::size_t staying = num_staying();
  const std::string text = leaving_names() + " to leave at step " + std::to_string(step_) +
                           ", which every rank has reached; the job continues with " +
                           count_text(staying, "node") + " of this round";
  announce(text);
  inform(true, text);
}

void DrainMachine::send_release() {
  Order order = order_of(Order::Kind::kRelease);
  for (const NodeId& node : released_) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) continue;
    if (step_ == drain::kNoStep) order.step = found->second.reply.held;
    out_->push_back(drain_action::Send{node, order});
  }
}

// Their round is over.
void DrainMachine::forget_released() {
  std::erase_if(leaving_, [this](const NodeId& node) {
    return std::find(released_.begin(), released_.end(), node) != released_.end();
  });
  released_.clear();
  if (is_departure_ && leaving_.empty()) end_departure(kNoMember);
}

// A node that was not connected then repeats the notice with the rest of its time.
bool DrainMachine::is_given_up(const drain::Notice& notice) const {
  const std::vector<NodeId>& nodes = notice.departure->nodes;
  return notice.reason == given_up_reason_ &&
         std::all_of(nodes.begin(), nodes.end(), [this](const NodeId& node) {
           return std::find(given_up_.begin(), given_up_.end(), node) != given_up_.end();
         });
}

void DrainMachine::give_up_departure(const std::string& why) {
  const bool is_released = phase_ == DrainPhase::kReleased;  // the round has to end
  const bool grows = joining_ > 0 && !is_released;
  const bool goes_on = grows && !leaving_.empty() && now_ < growth_deadline_ && can_reach_step();
  // In a job whose members change by restarts no node expects a step.
  const bool is_noted = grows && !goes_on && (step_ != drain::kNoStep || can_any_continue());
  if (has_time_ && !leaving_.empty()) {
    given_up_ = leaving_;
    given_up_reason_ = reason_;
  }
  deadline_ = now_;  // what the nodes send again later has no time left
  withdraw();        // also a step of an earlier coordinator
  if (has_time_ && !leaving_.empty())
    announce(leaving_names() + " not to leave at an agreed step: " + why);
  if (is_noted) announce("the round grows without an agreed step: " + why);
  const int joining = goes_on ? std::exchange(joining_, 0) : 0;
  end_departure(why, is_noted ? why : "");
  joining_ += joining;
  if (goes_on) begin_growth();
}

void DrainMachine::end_departure(const std::string& why, const std::string& growth_why) {
  inform(false, why);
  phase_ = DrainPhase::kIdle;
  is_departure_ = stops_job_ = has_time_ = withdraws_ = false;
  leaving_.clear();
  timer_.reset();
  end_growth(growth_why);
}

void DrainMachine::end_growth(std::string why) {
  if (std::exchange(joining_, 0) > 0) out_->push_back(drain_action::Grow{std::move(why)});
}

std::size_t DrainMachine::num_staying() const {
  return static_cast<std::size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [this](const auto& one) { return !is_leaving(one.first); }));
}

// "1 more node joins"
std::string DrainMachine::joining_text() const {
  if (!growth_why_.empty()) return growth_why_;
  return std::to_string(joining_) + (joining_ == 1 ? " more node joins" : " more nodes join");
}

// "node7_4711 is", "node7_4711 and 2 more are"
std::string DrainMachine::leaving_names() const {
  std::string name = "a node";
  for (const NodeId& node : leaving_) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end() || found->second.name.empty()) continue;
    name = found->second.name;
    break;
  }
  if (leaving_.size() < 2) return name + " is";
  return name + " and " + std::to_string(leaving_.size() - 1) + " more are";
}

bool DrainMachine::is_leaving(const NodeId& node) const {
  return std::find(leaving_.begin(), leaving_.end(), node) != leaving_.end();
}

}  // namespace elastic::core
