#include "core/drain/drain_member.h"

#include <utility>

namespace elastic::core {

using drain::kNoStep;
using drain::Order;
using drain::Reply;

void DrainMember::on(const node_event::RoundBegan& event, Out*) {
  *this = {};
  round_ = event.round->round;
  for (const WorkerAssignment& worker : event.round->workers) ranks_.push_back(worker.rank);
  has_ended_.assign(ranks_.size(), false);
  num_running_ = static_cast<int>(ranks_.size());
}

void DrainMember::on(const node_event::WorkerEnded& event, Out*) {
  const auto index = static_cast<std::size_t>(event.local_rank);
  if (index >= has_ended_.size() || has_ended_[index]) return;
  has_ended_[index] = true;
  --num_running_;
}

DrainMember::Answer DrainMember::answer(const Order& order) {
  if (order.round != round_) return {};
  Answer answer;
  const bool is_repeated = order.proposal == proposal_;
  proposal_ = order.proposal;
  if (!is_repeated) refusal_.reset();
  const bool is_departure = order.notice.departure.has_value();
  const auto kind = order.kind == Order::Kind::kRelease ? Order::Kind::kCommit : order.kind;
  if (has_workers()) {
    answer.request = {kind, order.proposal, order.step, is_departure};
    answer.reason = order.notice.reason;
  }
  switch (order.kind) {
    case Order::Kind::kAsk:
      if (!has_workers()) answer.reply = reply_of(Reply::Kind::kSteps);
      break;
    case Order::Kind::kTentative:
      // A worker that waits at the accepted step must not look like one that has passed it, nor the
      // other way round: what was replied may have been lost with the session.
      if (is_repeated && accepted_ == order.step) {
        if (is_waiting_) return {{}, begin_waiting()};
        return {{}, refusal_.value_or(reply_of(Reply::Kind::kAccepted))};
      }
      is_waiting_ = false;
      accepted_ = has_workers() ? kNoStep : order.step;
      tentative_ = order.step;
      if (!has_workers()) {
        answer.reply = is_departure ? begin_waiting() : reply_of(Reply::Kind::kAccepted);
      }
      break;
    case Order::Kind::kWithdraw:
      accepted_ = tentative_ = kNoStep;
      is_waiting_ = is_committed_ = false;
      break;
    case Order::Kind::kRelease:
      if (!is_committed_) answer.leaves_at = order.step;
      [[fallthrough]];
    case Order::Kind::kCommit:
      accepted_ = order.step;
      is_committed_ = true;
      if (has_workers()) break;
      answer.reply = final_.value_or(reply_of(Reply::Kind::kEnded));
      answer.reply->proposal = proposal_;
      break;
  }
  return answer;
}

DrainMember::Answer DrainMember::answer(const drain::StopStepEvent& event) {
  const bool is_final = event.kind == Reply::Kind::kReached || event.kind == Reply::Kind::kEnded;
  // What follows a commit holds for every later proposal of the round.
  if (is_final ? !is_committed_ : event.proposal != proposal_) return {};
  if (event.kind == Reply::Kind::kAccepted) accepted_ = tentative_;
  if (event.kind == Reply::Kind::kWaiting) {
    if (accepted_ != tentative_) return {};  // of a step that was refused or withdrawn
    return {{}, begin_waiting()};
  }
  Reply reply = reply_of(event.kind);
  reply.newest = event.newest;
  reply.oldest = event.oldest;
  if (is_final) {
    reply.stopped = static_cast<std::int32_t>(event.stopped);
    reply.first_stop = event.first_stop;
    reply.last_stop = event.last_stop;
    final_ = reply;
    return {{}, std::move(reply)};
  }
  std::vector<bool> is_known = has_ended_;
  for (const std::uint32_t id : event.reporting) {
    if (id >= is_known.size() || is_known[id]) continue;
    is_known[id] = true;
    ++reply.reporting;
  }
  for (std::size_t i = 0; i < is_known.size(); ++i) {
    if (is_known[i]) continue;
    ++reply.num_silent;
    if (reply.silent.size() < drain::kSilentRanksMax) reply.silent.push_back(ranks_[i]);
  }
  if (event.kind == Reply::Kind::kRefused && accepted_ == tentative_) refusal_ = reply;
  return {{}, std::move(reply)};
}

Reply DrainMember::begin_waiting() {
  is_waiting_ = true;
  Reply reply = reply_of(Reply::Kind::kWaiting);
  reply.reporting = num_running_;
  return reply;
}

Reply DrainMember::reply_of(Reply::Kind kind) const {
  Reply reply;
  reply.kind = kind;
  reply.round = round_;
  reply.proposal = proposal_;
  reply.held = accepted_;
  reply.is_committed = is_committed_;
  return reply;
}

}  // namespace elastic::core
