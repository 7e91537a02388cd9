#include "core/drain/drain_machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/base/text.h"
#include "elastic/agent.h"

// Theory of operation. Two phases, as in a two-phase commit. The nodes report the newest step of
// their workers; a step above all of them is sent as tentative; a node accepts it if none of its
// workers had reached it when the tentative word was in their pages. From then on no worker passes
// the step: it waits in should_stop(). When all nodes have accepted, the step is committed. If one
// refuses, a rank may have passed the step, and a later one is proposed with twice the margin.
//
// Never two different steps: a commit needs the acceptance of every member of the round, and a node
// gives up an accepted step only for a later order, or with its workers. A step is replaced or
// withdrawn only before it was committed, and by a coordinator that knows so: the replies to kAsk
// contain what each node holds, and no step is proposed before every member has replied. So a
// coordinator that replaces one between acceptance and commit withdraws, and one that replaces it
// after the commit reached any living member commits the same step.
//
// A round that ends takes everything with it: all of its workers are stopped. The next round is
// asked again.
//
// After a takeover the deadline may have passed long ago, and every rank may be saving its state at
// a step that is committed. So no rank is stopped before the nodes had the time to resume and to
// reply: what one of them has seen committed is committed here, too.
//
// What cannot be agreed on before the deadline is given up: the job is closed, and its workers are
// stopped as by a signal.
//
// Nodes that leave or join a job whose other workers continue: drain_departure.cc.

namespace elastic::core {
namespace {

using drain::kNoStep;
using drain::Order;
using drain::Reply;

constexpr std::size_t kNamesShown = 8;
constexpr std::int64_t kMarginMax = std::int64_t{1} << 40;
constexpr int kExitStoppedBySignal = 128 + SIGTERM;

// Workers write their steps themselves, and may write anything.
constexpr std::int64_t kStepMax = std::int64_t{1} << 60;

Reply checked(Reply reply) {
  for (std::int64_t* const step :
       {&reply.newest, &reply.oldest, &reply.first_stop, &reply.last_stop}) {
    *step = std::clamp(*step, kNoStep, kStepMax);
  }
  reply.reporting = std::max(reply.reporting, 0);
  reply.num_silent = std::max(reply.num_silent, 0);
  reply.stopped = std::max(reply.stopped, 0);
  return reply;
}

}  // namespace

void DrainMachine::step(const DrainEvent& event, Instant now, std::vector<DrainAction>* out) {
  now_ = now;
  out_ = out;
  std::visit([this](const auto& one) { on(one); }, event);
  out_ = nullptr;
}

void DrainMachine::on(const round_event::Began& event) {
  if (phase_ == DrainPhase::kOver) return;
  if (event.round != round_) {
    on(round_event::Ended{});
    round_ = event.round;
  }
  num_members_ = event.nodes;
  min_nodes_ = event.min_nodes;
  if (nodes_.empty()) note_takeover(event.resume_limit);
  const auto [found, is_new] = nodes_.try_emplace(event.node);
  found->second.name = event.name;
  switch (phase_) {
    case DrainPhase::kAwaitRound: begin(); break;
    case DrainPhase::kAsking:
    case DrainPhase::kProposed:
    case DrainPhase::kCommitted:
    case DrainPhase::kReached:
    case DrainPhase::kHolding:
      if (!is_new) send(event.node);  // the order may have been lost with the session
      break;
    case DrainPhase::kReleased:
      if (!is_new) send_release();
      break;
    default: break;
  }
}

void DrainMachine::on(const round_event::Ended&) {
  if (phase_ == DrainPhase::kOver) return;
  joining_ = 0;  // they are in the next round
  if (is_departure_ && leaving_.empty()) end_departure(kNoMember);
  if (phase_ == DrainPhase::kReleased) forget_released();
  if (phase_ == DrainPhase::kAsking || phase_ == DrainPhase::kProposed ||
      phase_ == DrainPhase::kAwaitSteps || phase_ == DrainPhase::kHolding) {
    announce("the round ends before its ranks agreed on a step; asking again in the next round");
  } else if (phase_ == DrainPhase::kCommitted || phase_ == DrainPhase::kReached) {
    announce("the round ends before every rank has stopped at step " + std::to_string(step_) +
             "; asking again in the next round");
  }
  if (phase_ != DrainPhase::kIdle) phase_ = DrainPhase::kAwaitRound;
  forget_nodes();
  num_members_ = 0;
  first_report_.reset();
  no_stop_before_ = Instant::min();
  timer_.reset();
  announced_.clear();
  step_ = newest_ = kNoStep;
  margin_ = 1;
  is_incomplete_ = false;
}

void DrainMachine::on(const round_event::Over&) {
  if (phase_ != DrainPhase::kOver) inform(false, "the job has ended");
  phase_ = DrainPhase::kOver;
  forget_nodes();
  timer_.reset();
}

void DrainMachine::on(const round_event::Left& event) {
  const auto found = nodes_.find(event.node);
  const bool is_known = found != nodes_.end();
  const int members = event.nodes.value_or(num_members_ - (is_known ? 1 : 0));
  if (!is_known && members == num_members_) return;
  num_members_ = members;
  const bool has_ended = !is_known || found->second.reply.kind == Reply::Kind::kEnded;
  if (is_known) {
    count(found->second, -1);
    nodes_.erase(found);
  }
  switch (phase_) {
    case DrainPhase::kProposed:
    case DrainPhase::kHolding: withdraw(); [[fallthrough]];
    case DrainPhase::kAsking:
    case DrainPhase::kAwaitSteps:
    case DrainPhase::kAwaitRound:
      phase_ = DrainPhase::kAwaitRound;
      timer_.reset();
      begin();
      break;
    case DrainPhase::kCommitted:
    case DrainPhase::kReached:
      // What its ranks have not saved is lost: the rendezvous decides what follows.
      is_incomplete_ = is_incomplete_ || !has_ended;
      check_reached();
      break;
    default: break;
  }
}

void DrainMachine::on(const round_event::Progressed& event) {
  const auto found = nodes_.find(event.node);
  if (found == nodes_.end() || event.progress.round != round_) return;
  Node& node = found->second;
  node.reporting = event.progress.reporting;
  if (event.progress.reporting > 0 && !first_report_) first_report_ = now_;
  if (phase_ == DrainPhase::kAwaitSteps && node.reporting != node.reply.reporting) ask_again();
}

void DrainMachine::on(const drain_event::Noticed& event) {
  if (event.observer != 0) observers_.push_back(event.observer);
  const Instant deadline = add_saturating(now_, std::max(event.notice.left, Duration::zero()));
  spares_ = event.spares;
  if (phase_ == DrainPhase::kOver) return inform(false, "the job has ended");
  const bool is_departure = event.notice.departure.has_value();
  if (is_departure && (is_departure_ || phase_ == DrainPhase::kIdle)) {
    return note_departure(event, deadline);
  }
  if (is_departure_) return stop_instead(event, deadline);
  if (phase_ == DrainPhase::kCommitted || phase_ == DrainPhase::kReached) {
    inform(true, "every rank stops at step " + std::to_string(step_));
  }
  if (phase_ != DrainPhase::kIdle) {
    // A node that is to leave, or has left long ago, changes nothing about the stop of the job.
    if (!is_departure) deadline_ = std::min(deadline_, deadline);
    return;
  }
  if (nodes_.empty() && deadline <= now_) note_takeover(event.resume_limit);
  reason_ = event.notice.reason;
  deadline_ = deadline;
  phase_ = DrainPhase::kAwaitRound;
  announce("stopping all ranks at an agreed step (" + reason_ + "), within " +
           duration_text(event.notice.left));
  begin();
}

// A later deadline would stop nothing more: the process that gave the notice waits for the job's
// end.
void DrainMachine::on(const drain_event::Idle& event) {
  const bool is_agreed = phase_ == DrainPhase::kCommitted || phase_ == DrainPhase::kReached;
  if (is_open() && !is_agreed && !is_departure_ && now_ >= no_stop_before_) stop_now(event.why);
}

void DrainMachine::on(const drain_event::Replied& event) {
  const auto found = nodes_.find(event.node);
  const Reply reply = checked(event.reply);
  const bool is_expected =
      found != nodes_.end() && reply.round == round_ && reply.proposal == proposal_;
  if (!is_expected) return;
  Node& node = found->second;
  spares_ = event.spares;
  switch (reply.kind) {
    case Reply::Kind::kSteps:
      if (phase_ != DrainPhase::kAsking) return;
      note(node, reply, true);
      if (reply.reporting > 0 && !first_report_) first_report_ = now_;
      if (all_replied()) decide();
      break;
    case Reply::Kind::kAccepted:
      if (phase_ != DrainPhase::kProposed) return;
      note(node, reply, true);
      if (!all_replied()) break;
      if (is_departure_) {
        begin_holding();
      } else {
        commit(step_);
      }
      break;
    case Reply::Kind::kWaiting:
      if (phase_ != DrainPhase::kProposed && phase_ != DrainPhase::kHolding) return;
      note(node, reply, true);
      if (phase_ == DrainPhase::kHolding) return check_waiting();
      if (all_replied() && is_departure_) begin_holding();
      break;
    case Reply::Kind::kRefused:
      // After it had accepted the step. The rank may wait at a later one, but nodes that join need
      // not wait for that.
      if (phase_ == DrainPhase::kHolding && is_growth()) {
        return give_up_departure("a rank has passed the step");
      }
      if (phase_ != DrainPhase::kProposed) return;
      newest_ = std::max(newest_, reply.newest);
      margin_ = std::min(2 * margin_, kMarginMax);
      propose();
      break;
    case Reply::Kind::kReached:
    case Reply::Kind::kEnded:
      if (phase_ != DrainPhase::kCommitted && phase_ != DrainPhase::kReached) return;
      note(node, reply, node.has_replied);
      check_reached();
      break;
  }
}

void DrainMachine::on(const PartTick&) {
  if (is_open() && now_ >= std::max(deadline_, no_stop_before_)) {
    std::string why;
    switch (phase_) {
      case DrainPhase::kAwaitRound:
        why = nodes_.empty() ? "no round of the job ran"
                             : std::to_string(nodes_.size()) + " of " +
                                   std::to_string(num_members_) + " nodes were connected";
        break;
      case DrainPhase::kAwaitSteps: why = silent_text(); break;
      case DrainPhase::kCommitted:
        why = "the ranks on " + unreached_names() + " had not stopped at step " +
              std::to_string(step_) + " (they are slow, or do not call should_stop())";
        break;
      case DrainPhase::kReleased:
        why = "it had not left although every rank had reached the step";
        break;
      case DrainPhase::kHolding:
        why = "not every rank had reached step " + std::to_string(step_);
        break;
      default: why = "the nodes did not agree on a step"; break;
    }
    if (is_departure_) return give_up_departure(why + " by the deadline");
    return stop_now(why + " by the deadline");
  }
  if (!timer_ || now_ < *timer_) return;
  timer_.reset();
  switch (phase_) {
    case DrainPhase::kAwaitRound: begin(); break;
    case DrainPhase::kProposed: withdraw(); [[fallthrough]];
    case DrainPhase::kAsking:
    case DrainPhase::kAwaitSteps: ask(); break;
    default: break;
  }
}

// The deadline of a notice is one of the outside world; what nodes need to answer is not.
void DrainMachine::on(const round_event::ClockGap& event) {
  if (no_stop_before_ != Instant::min()) {
    no_stop_before_ = add_saturating(no_stop_before_, event.gap);
  }
  if (timer_) timer_ = add_saturating(*timer_, event.gap);
  const bool is_own_limit = phase_ == DrainPhase::kReleased || is_growth();
  if (is_own_limit) deadline_ = add_saturating(deadline_, event.gap);
  if (joining_ > 0) growth_deadline_ = add_saturating(growth_deadline_, event.gap);
}

std::optional<Instant> DrainMachine::next_deadline() const {
  if (!is_open()) return std::nullopt;
  const Instant stop = std::max(deadline_, no_stop_before_);
  return timer_ ? std::min(*timer_, stop) : stop;
}

void DrainMachine::note_takeover(Duration resume_limit) {
  if (resume_limit <= Duration::zero()) return;
  no_stop_before_ = add_saturating(add_saturating(now_, resume_limit), kDrainReplyTimeout);
}

void DrainMachine::begin() {
  if (is_complete() && prepare_departure()) ask();
}

void DrainMachine::ask() {
  phase_ = DrainPhase::kAsking;
  newest_ = step_ = kNoStep;
  asked_at_ = now_;
  ++proposal_;
  send_all(Order::Kind::kAsk);
  timer_ = add_saturating(now_, kDrainReplyTimeout);
}

// A node has news while the ranks that have not reported yet are awaited.
void DrainMachine::ask_again() {
  const Instant next = add_saturating(asked_at_, kDrainAskInterval);
  if (now_ >= next) return ask();
  timer_ = timer_ ? std::min(*timer_, next) : next;
}

void DrainMachine::decide() {
  std::int64_t reporting = 0;
  std::int64_t silent = 0;
  bool is_held = false;
  std::vector<NodeId> released;
  no_stop_before_ = Instant::min();
  for (const auto& [id, node] : nodes_) {
    if (node.reply.is_committed && is_departure_ && is_leaving(id)) {
      released.push_back(id);
      continue;
    }
    // An earlier coordinator has committed it: all nodes had accepted it.
    if (node.reply.is_committed) {
      no_stop_before_ = add_saturating(now_, kDrainReplyTimeout);  // for the news of its ranks
      is_departure_ = false;
      return commit(node.reply.held);
    }
    reporting += node.reply.reporting;
    silent += node.reply.num_silent;
    newest_ = std::max(newest_, node.reply.newest);
    is_held = is_held || node.reply.held != kNoStep;
  }
  // By an earlier coordinator: every rank waits at the step.
  if (!released.empty()) return release(std::move(released));
  if (is_held) withdraw();  // a step of an earlier coordinator, which has not committed it
  if (is_departure_ && has_time_ && have_leaving_finished()) {
    return give_up_departure("its workers have finished");
  }
  if (is_growth() && (reporting == 0 || silent > 0)) return give_up_departure(silent_text());
  const auto silent_until = add_saturating(first_report_.value_or(now_), kDrainSilentGrace);
  const bool is_awaited = now_ < silent_until || (is_departure_ && obstacle().empty());
  if (reporting == 0 || (silent > 0 && is_awaited)) {
    phase_ = DrainPhase::kAwaitSteps;
    timer_.reset();
    if (reporting > 0 && now_ < silent_until) {
      timer_ = silent_until;
    } else if (is_departure_) {
      timer_ = add_saturating(now_, kDrainReplyTimeout);  // a silent rank may have ended
    }
    announce_once("waiting: " + silent_text());
    return;
  }
  if (!check_departure()) return;
  if (silent > 0) {
    announce_once(silent_text() +
                  ": the other ranks agree on a step, and these are stopped by SIGTERM after them");
  }
  propose();
}

void DrainMachine::propose() {
  step_ = newest_ + margin_;
  phase_ = DrainPhase::kProposed;
  ++proposal_;
  send_all(Order::Kind::kTentative);
  timer_ = add_saturating(now_, kDrainReplyTimeout);
}

void DrainMachine::commit(std::int64_t step) {
  step_ = step;
  phase_ = DrainPhase::kCommitted;
  timer_.reset();
  send_all(Order::Kind::kCommit);
  const std::string text = "every rank stops at step " + std::to_string(step_);
  announce(text);
  inform(true, text);
}

void DrainMachine::withdraw() {
  ++proposal_;
  step_ = kNoStep;
  send_all(Order::Kind::kWithdraw);
}

void DrainMachine::check_reached() {
  if (is_incomplete_ || nodes_.empty() || tally_.reached < nodes_.size()) return;
  const bool has_ended = tally_.ended == nodes_.size();
  if (phase_ == DrainPhase::kReached && !has_ended) return;
  std::int64_t stopped = 0;
  std::int64_t first = kNoStep;
  std::int64_t last = kNoStep;
  for (const auto& [id, node] : nodes_) {
    const Reply& reply = node.reply;
    if (reply.stopped == 0) continue;
    first = stopped == 0 ? reply.first_stop : std::min(first, reply.first_stop);
    last = std::max(last, reply.last_stop);
    stopped += reply.stopped;
  }
  const bool is_one_step = first == last;
  if (phase_ == DrainPhase::kCommitted) {
    phase_ = DrainPhase::kReached;
    if (stopped > 0 && is_one_step) {
      announce(count_text(stopped, "rank") + " stopped at step " + std::to_string(first) +
               "; waiting until they have saved their state and exited");
    }
  }
  if (!has_ended || stopped == 0) return;  // without stops the job succeeds
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
  if (is_one_step) {
    result.exit_code = kExitStoppedAtStep;
    result.message =
        "stopped at step " + std::to_string(first) + " on every rank, resumable (" + reason_ + ")";
  } else {
    result.exit_code = kExitStoppedBySignal;
    result.message = "stopped at different steps, from " + std::to_string(first) + " to " +
                     std::to_string(last) + " (" + reason_ +
                     "): every rank must call should_stop() at the same steps";
  }
  finish(result);
}

void DrainMachine::stop_now(const std::string& why) {
  JobResult result;
  result.outcome = JobOutcome::kClosed;
  result.cause = JobCause::kRequested;
  result.exit_code = kExitStoppedBySignal;
  result.message = "stopped without an agreed step (" + reason_ + "): " + why;
  inform(false, result.message);
  finish(result);
}

void DrainMachine::finish(const JobResult& result) {
  phase_ = DrainPhase::kOver;
  timer_.reset();
  forget_nodes();
  out_->push_back(drain_action::Close{result});
}

// A reply costs the same in a job of any size: only the last one that is awaited visits all nodes.
void DrainMachine::count(const Node& node, int sign) {
  const bool has_ended = node.reply.kind == Reply::Kind::kEnded;
  const bool has_reached = has_ended || node.reply.kind == Reply::Kind::kReached;
  tally_.replied += node.has_replied ? sign : 0;
  tally_.reached += has_reached ? sign : 0;
  tally_.ended += has_ended ? sign : 0;
  tally_.waiting += node.reply.kind == Reply::Kind::kWaiting ? sign : 0;
}

void DrainMachine::note(Node& node, const Reply& reply, bool has_replied) {
  count(node, -1);
  node.has_replied = has_replied;
  node.reply = reply;
  count(node, +1);
}

void DrainMachine::forget_nodes() {
  nodes_.clear();
  tally_ = {};
}

std::string DrainMachine::describe() const {
  if (is_departure_ && leaving_.empty()) {
    return joining_ == 0 ? "" : joining_text() + " at an agreed step";
  }
  if (is_departure_ && phase_ != DrainPhase::kOver) {
    return leaving_names() + " to leave at an agreed step (" + reason_ + ")";
  }
  switch (phase_) {
    case DrainPhase::kIdle:
    case DrainPhase::kOver: return "";
    case DrainPhase::kCommitted:
    case DrainPhase::kReached:
      return "every rank stops at step " + std::to_string(step_) + " (" + reason_ + ")";
    default: return "stopping all ranks at an agreed step (" + reason_ + ")";
  }
}

std::string DrainMachine::unreached_names() const {
  std::string names;
  std::size_t shown = 0;
  for (const auto& [id, node] : nodes_) {
    const bool is_reached =
        node.reply.kind == Reply::Kind::kReached || node.reply.kind == Reply::Kind::kEnded;
    if (is_reached || ++shown > kNamesShown) continue;
    names += (names.empty() ? "" : ", ") + (node.name.empty() ? "this node" : node.name);
  }
  if (shown > kNamesShown) names += " and " + std::to_string(shown - kNamesShown) + " more";
  return names;
}

// "ranks 3, 4 have reported no step"
std::string DrainMachine::silent_text() const {
  std::vector<std::int32_t> ranks;
  std::int64_t silent = 0;
  std::int64_t reporting = 0;
  for (const auto& [id, node] : nodes_) {
    silent += node.reply.num_silent;
    reporting += node.reply.reporting;
    ranks.insert(ranks.end(), node.reply.silent.begin(), node.reply.silent.end());
  }
  if (reporting == 0) return "no rank has reported a step";
  std::sort(ranks.begin(), ranks.end());
  if (ranks.size() > kNamesShown) ranks.resize(kNamesShown);
  std::string text = silent == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  }
  const auto rest = silent - static_cast<std::int64_t>(ranks.size());
  if (rest > 0) text += " and " + std::to_string(rest) + " more";
  return text + (silent == 1 ? " has" : " have") + " reported no step";
}

drain::Order DrainMachine::order_of(Order::Kind kind) const {
  Order order;
  order.kind = kind;
  order.round = round_;
  order.proposal = proposal_;
  order.step = step_;
  order.notice = {std::max(deadline_ - now_, Duration::zero()), reason_};
  if (is_departure_) order.notice.departure = {leaving_, stops_job_};
  return order;
}

void DrainMachine::send(NodeId to) { out_->push_back(drain_action::Send{to, order_of(sent_)}); }

void DrainMachine::send_all(Order::Kind kind) {
  sent_ = kind;
  tally_.replied = 0;
  for (auto& [id, node] : nodes_) {
    node.has_replied = false;
    send(id);
  }
}

void DrainMachine::announce(std::string text) {
  announced_ = text;
  out_->push_back(drain_action::Announce{std::move(text)});
}

void DrainMachine::announce_once(std::string text) {
  if (text != announced_) announce(std::move(text));
}

void DrainMachine::inform(bool is_agreed, const std::string& text) {
  for (const std::uint64_t observer : std::exchange(observers_, {})) {
    out_->push_back(drain_action::Inform{observer, is_agreed, text});
  }
}

}  // namespace elastic::core
